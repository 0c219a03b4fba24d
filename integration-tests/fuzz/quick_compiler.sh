# sh quick_compiler.sh COMPILER ARGUMENTS...: a C compiler that optimises little, whatever it is told.
# Not at all would not do: products would no longer be contracted into sums, which ours count on for accuracy.
exec "$@" -O1
