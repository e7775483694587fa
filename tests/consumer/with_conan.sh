#!/usr/bin/env bash
# Makes a Conan package of what is built in BUILD, and builds and runs the consumer with it.
#   with_conan.sh CONAN BUILD TORCH
set -euo pipefail
conan=$1 build=$2 torch=$3
export CONAN_HOME=$build/conan_home
rm -rf "$CONAN_HOME"
"$conan" profile detect >/dev/null
"$conan" export-pkg "$(dirname "$0")/../../packaging/conan" -o "mezzo/*:torch=$torch" -s compiler.cppstd=20 \
  -c "user.mezzo:build_folder=$build"
