#!/bin/sh
# Removes from the virtual environment $1 what no node loads (deploy/README.md has the sizes). The Dockerfile then
# runs a small swarm from what is left, so a build that removed too much fails.
set -eu
packages=$(echo "$1"/lib/python3*/site-packages)
du -sm "$1"
# needed only to compile extensions against torch, Arrow and NumPy
rm -rf "$packages"/torch/include "$packages"/torch/share "$packages"/torch/test
find "$packages"/torch/bin -type f ! -name torch_shm_manager -delete
rm -rf "$packages"/pyarrow/include "$packages"/pyarrow/src
find "$packages" -name '*.a' -type f -delete
# the tests of other packages (torch.testing and numpy.testing are not tests, and are loaded)
find "$packages" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
# debug symbols, a fifth of torch; not those of other packages, whose libraries patchelf may have rearranged, and
# not those of the GPU libraries, where nobody has tried it
strip --strip-unneeded "$packages"/torch/lib/libtorch_cpu.so "$packages"/torch/lib/libtorch_python.so \
    $(find "$packages" -name 'libarrow.so.*')
du -sm "$1"
