#!/usr/bin/env bash
# Makes a Conan package of the build in BUILD, and builds and runs the consumer with it.
#   with_conan.sh CONAN BUILD TORCH
set -euo pipefail
conan=$1 build=$2 torch=$3
export CONAN_HOME=$build/conan_home
rm -rf "$CONAN_HOME"
"$conan" profile detect >/dev/null
sources=$(realpath "$(dirname "$0")/../..")
port=$sources/packaging/vcpkg/mezzo/vcpkg.json version=$(sed -n 's/.*MEZZO_VERSION "\(.*\)"/\1/p' "$sources/include/mezzo/version.h")
grep -q "\"version\": \"$version\"" "$port" || { echo "$port is not of version $version" >&2; exit 1; }
"$conan" export-pkg "$sources/packaging/conan" -o "mezzo/*:torch=$torch" -s compiler.cppstd=20 \
  -c "user.mezzo:build_folder=$build" -c "user.mezzo:consumer_folder=$build/conan_consumer"
