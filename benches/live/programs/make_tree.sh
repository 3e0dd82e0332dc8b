#!/bin/sh -e
# make_tree.sh DIR: a C tree of 12 modules of 40 functions and a makefile, to be built by make -j2.
mkdir -p "$1"
cd "$1"
{
    echo 'OBJECTS = $(addsuffix .o, $(basename $(wildcard module_*.c)))'
    echo 'program: $(OBJECTS)'
    printf '\tcc -o $@ $^\n'
    echo '%.o: %.c'
    printf '\tcc -O1 -c -o $@ $<\n'
} > Makefile
for module in $(seq 1 12); do
    {
        echo '#include <stdlib.h>'
        for function in $(seq 1 40); do
            echo "int f_${module}_$function(int *values, int n) {"
            echo "  int sum = $function;"
            echo "  for (int i = 0; i < n; i++) sum = sum * $module + values[i] % ($function + 1);"
            echo "  return abs(sum);"
            echo "}"
        done
        if [ "$module" = 1 ]; then echo 'int main(void) { int v[3] = {1, 2, 3}; return f_1_1(v, 3) > 1000; }'; fi
    } > "module_$module.c"
done
