#!/usr/bin/env bash
# Builds and runs programs that use an installed mezzo, by pkg-config alone. Checks that the other installed files are there.
#   with_pkg_config.sh PREFIX SOURCES WORK VOCAB
set -euo pipefail
prefix=$1 sources=$2 work=$3 vocab=$4
PKG_CONFIG_PATH=$(find "$prefix" -type d -name pkgconfig)
export PKG_CONFIG_PATH

# build SOURCE PACKAGE
build() {
  # shellcheck disable=SC2046 # several words are meant
  g++ "$sources/$1.cpp" -o "$work/$1_by_pkg_config" $(pkg-config --cflags --libs "$2")
}
build distributed mezzo-distributed
"$work/distributed_by_pkg_config"
build text mezzo-text
"$work/text_by_pkg_config" "$vocab"

for said in man/man1/mezzo.1 bash-completion/completions/mezzo zsh/vendor-completions/_mezzo fish/vendor_completions.d/mezzo.fish; do
  grep -q mezzo "$prefix/share/$said"
done
