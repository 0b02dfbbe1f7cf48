# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the scripts here. In: ATTND_CACHE (~/.cache/attnd). Out: where the riscv64 tools
# keep what they fetched, and how to name an emulated CPU.
cache=${ATTND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/attnd}/riscv64
sysroot=$cache/sysroot
target=riscv64-linux-gnu

# All extensions that the kernels may use; $2 takes some away or adds qemu's options.
qemu_cpu() { # VLEN [options]
	echo "rv64,v=true,vlen=$1,zvfh=true,zvfbfmin=true,zvfbfwma=true${2:+,$2}"
}
