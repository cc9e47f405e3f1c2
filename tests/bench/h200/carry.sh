#!/usr/bin/env bash
# Makes build_carry/1, /2 and /3 in the project's folder: what a GPU machine without a network needs besides this
# checkout, in parts of less than 64 MiB with it. Wheels for Python 3.12 on x86-64 with glibc 2.28 or later, llama.cpp's source
# as notebook 00 unpacked it from the sdist, the default model, and a curl for a machine that has none.
# They leave room for 4 MB beside them: put outputs/samples/h200 elsewhere while you carry.
#
#   bash tests/bench/h200/carry.sh            wants the network, an unpacked sdist and the model in labkit's cache
set -euo pipefail
cd "$(dirname "$0")/../../.."
cache=${LABKIT_CACHE:-$HOME/.cache/labkit}
source=${LLAMA_SOURCE:-$cache/builds/10156.0.0-cpu/source}
model=$cache/SmolLM2-135M-Instruct.Q4_1.gguf
python=${PYTHON:-.venv/bin/python}
out=build_carry
rm -rf "$out" && mkdir -p "$out"/{1,2,3}/wheels

# what papermill runs want, at the pins of requirements.txt; numpy, scipy, cmake and ninja are on that machine
wanted='ipykernel|ipywidgets|anywidget|papermill|jsonschema|httpx|httpcore|httptools|pydantic|psutil|filelock|platformdirs|gguf|prometheus-client|nvidia-ml-py|pandas|altair|vl-convert-python|pillow|pyyaml|nbformat|jupyter-client'
grep -E "^($wanted)==" requirements.txt >"$out/wanted.txt"
platforms=()
for name in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux_2_5 manylinux1; do
  platforms+=(--platform "${name}_x86_64")
done
"$python" -m pip download -qq --only-binary=:all: --implementation cp --python-version 3.12 "${platforms[@]}" \
  -r "$out/wanted.txt" -d "$out/1/wheels"
# a debugger is left out too: ipykernel does without
rm -f "$out"/1/wheels/{numpy,scipy,cmake,ninja,debugpy}-*.whl
mv "$out"/1/wheels/vl_convert_python-*.whl "$out/3/wheels"

# what a build of llama-server and llama-batched-bench for the CPU and CUDA reads, and no more
excluded=(docs models media tests benches examples pocs app conversion gguf-py skills requirements ci .github .devops)
for backend in sycl vulkan opencl cann hexagon metal webgpu openvino zdnn zendnn musa virtgpu; do
  excluded+=("ggml/src/ggml-$backend")
done
tar -C "$source" "${excluded[@]/#/--exclude=./}" --exclude='./convert*' --exclude='*.gguf' -cJf "$out/1/source.tar.xz" .

mkdir "$out/curl" && cp "$(readlink -f "$(command -v curl)")" "$out/curl/curl"
ldd "$out/curl/curl" | awk '$3 ~ /^\// {print $3}' | grep -Ev '/(libc|libm|libdl|libpthread|librt|libresolv)\.so' |
  xargs -I{} cp -L {} "$out/curl/"
tar -C "$out" -cJf "$out/1/curl.tar.xz" curl && rm -r "$out/curl"

piece() { dd if="$model" of="$1" iflag=skip_bytes,count_bytes skip="$2" count="$3" bs=1M status=none; }
piece "$out/1/model.0" 0 10000000
piece "$out/2/model.1" 10000000 60000000
piece "$out/3/model.2" 70000000 1000000000
sha256sum "$model" | cut -d' ' -f1 >"$out/3/model.sha256"
du -sb --apparent-size "$out"/{1,2,3}
