#!/usr/bin/env bash
# Makes a shared library of whole static libraries, as a user's plug-in may contain them, and fails if it exports
# functions or objects of mezzo: two plug-ins with different versions of mezzo would use those of the other.
#   exported_symbols.sh WORK LIBRARY...
set -euo pipefail
plugin=$1/all_of_mezzo.so
shift
g++ -shared -o "$plugin" -Wl,--whole-archive "$@" -Wl,--no-whole-archive
nm --dynamic --defined-only "$plugin" >"$plugin.symbols"
rm "$plugin"
in_namespace_mezzo=' _Z[A-Z]*5mezzo' # as compilers spell mezzo::f, its statics and typeinfo
if exported=$(grep --count "$in_namespace_mezzo" "$plugin.symbols"); then
  grep --max-count=5 "$in_namespace_mezzo" "$plugin.symbols" | c++filt
  echo "$exported symbols of mezzo are exported"
  exit 1
fi
