#!/usr/bin/env bash
# PLUGIN is a user's shared library with static libraries of mezzo in it. Fails if it exports their functions or
# objects: another plug-in with another version of mezzo would use them.
#   exported_symbols.sh PLUGIN
set -euo pipefail
symbols=$(nm --dynamic --defined-only "$1")
grep -q ' plugin_entry$' <<<"$symbols" || { echo "$1 exports nothing at all"; exit 1; }
in_namespace_mezzo=' _Z[A-Z]*5mezzo' # as compilers spell mezzo::f, its statics and typeinfo
if exported=$(grep --count "$in_namespace_mezzo" <<<"$symbols"); then
  grep --max-count=5 "$in_namespace_mezzo" <<<"$symbols" | c++filt
  echo "$exported symbols of mezzo are exported"
  exit 1
fi
