"""Captured frames that outlive the process: written from a capture, found and checked again in another process.

``facts``     what is said of an object, the same in every process
``plain``     values as JSON
``names``     where an object is found, written down
``finding``   the object there, with what was said of it checked
``making``    objects that capture makes and guards look into
``log``       the guards of a capture, as they are put on its tree
``writing``   a translation as an artefact
``reading``   the artefact as a translation, where its guards hold
``programs``  what capture asks of a store

Nothing here that reads imports the interpreter.
"""
