"""Programs ahead of time: exported with a contract of their inputs, packaged, and run where no model's code is.

    export      one full graph of a model, with its contract               export.py
    exported    what export gives: runs, is saved, loaded and printed       exported.py
    contract    names, types, sizes and structure of what goes in and out   contract.py, trees.py
    package     a folder with compiled code and weights beside it           package.py
    interchange ONNX models and StableHLO text, for other runtimes          interchange/
"""
