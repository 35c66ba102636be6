#!/usr/bin/env bash
# Installs the Debian packages that the build needs, as root; otherwise names them.
set -euo pipefail

missing=()
[ -d /usr/lib/llvm-19/lib/cmake/llvm ] || missing+=(llvm-19-dev)
[ -f /usr/include/gtest/gtest.h ] || missing+=(libgtest-dev)
command -v c++ >/dev/null || command -v g++ >/dev/null || missing+=(g++)
optional=()
command -v ccache >/dev/null || optional+=(ccache)
command -v mold >/dev/null || optional+=(mold)
[ ${#missing[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  [ ${#missing[@]} -eq 0 ] && exit 0  # The optional ones only save time.
  echo "These packages are missing; install them and run make again:" >&2
  echo "  apt-get install ${missing[*]} ${optional[*]}" >&2
  exit 1
fi
missing+=("${optional[@]}")
echo "== Installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
