#!/bin/sh
# Removes from the virtual environment $1 what no node loads (deploy/README.md has the sizes). The Dockerfile then
# runs a small swarm from what is left: a build that took too much away fails.
set -eu
packages=$(echo "$1"/lib/python3*/site-packages)
du -sm "$1"
"$1"/bin/python -m pip uninstall --quiet --yes pip
# for compiling extensions against torch, Arrow and NumPy
rm -rf "$packages"/torch/include "$packages"/torch/share "$packages"/torch/test
find "$packages"/torch/bin -type f ! -name torch_shm_manager -delete
rm -rf "$packages"/pyarrow/include "$packages"/pyarrow/src
find "$packages" -name '*.a' -type f -delete
# the tests of other packages (torch.testing and numpy.testing are no tests, and are loaded)
find "$packages" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
# names for debuggers: a fifth of torch. Not of other packages, whose libraries patchelf may have rearranged, and
# not of the libraries for GPUs, where nobody has tried it
strip --strip-unneeded "$packages"/torch/lib/libtorch_cpu.so "$packages"/torch/lib/libtorch_python.so \
    "$packages"/pyarrow/libarrow.so.*
du -sm "$1"
