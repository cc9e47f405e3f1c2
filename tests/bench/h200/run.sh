#!/usr/bin/env bash
# Issue F on a GPU machine without a network: every step can be called again and goes on where it stopped.
# What lasts lies in /tmp/labkit-h200 there; what comes back goes to $OUT.
#
#   bash tests/bench/h200/run.sh STEP...
#     parts        keep what was carried in build_carry/
#     wheels       a virtual environment from the carried wheels, with the machine's own numpy, scipy, cmake, ninja
#     source       unpack llama.cpp
#     build_start  compile in the background, as notebook 00 does
#     model        join the default model, check its sha256
#     toy8b        write the toy of 8B shape, 15 GB
#     build        wait for the compiler, then notebook 00
#     default:NN   notebook NN (01 to 05) with the default model; default alone: all five
#     8b:NN        the same with the toy of 8B shape
#     rates        the kit, curl and llama-batched-bench side by side, default model; rates8b: the toy of 8B shape
#     collect      executed notebooks, run folders and logs to $OUT
#   Tried elsewhere with LAB_PYTHON (an environment that is there), BACKEND=cpu, SMALL and BIG (other models).
#   It starts nothing when LIMIT_S (500) seconds have gone, and says what is left.
set -uo pipefail
shopt -s nullglob
project=$(cd "$(dirname "$0")/../../.." && pwd)
state=${STATE:-/tmp/labkit-h200}
limit_s=${LIMIT_S:-500}
: "${OUT:=$state/out}"
export LABKIT_CACHE=$state/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python=${LAB_PYTHON:-$state/venv/bin/python}
backend=${BACKEND:-cuda}
mkdir -p "$state"/{parts/wheels,cache,executed,runs,logs,repo} "$OUT"
# a copy: the working tree may be sent anew while the compiler runs
cp -a "$project"/{labkit,notebooks,params,tests,pyproject.toml} "$state/repo/"
cd "$state/repo" || exit 1
export PYTHONPATH=$state/repo

say() { echo "$(date +%T) +${SECONDS}s $*" | tee -a "$state/logs/steps.log"; }
left() { # seconds that the step may need
  if ((SECONDS + $1 > limit_s)); then say "left for the next call: $2"; return 1; fi
}

parts() {
  local file
  for file in "$project"/build_carry/?/wheels/*.whl; do cp -u "$file" "$state/parts/wheels/"; done
  for file in "$project"/build_carry/?/{model.?,model.sha256,source.tar.xz,curl.tar.xz}; do cp -u "$file" "$state/parts/"; done
  du -sh "$state/parts"
}

wheels() {
  local files=("$state"/parts/wheels/*.whl) site
  if [[ -n ${LAB_PYTHON:-} ]]; then say "taking $python as it is"; return; fi
  if [[ ! -x $python ]]; then
    python3 -m venv --without-pip "$state/venv" || return 1
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # the machine's own packages come after ours
    python3 -c 'import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])' >"$site/machine.pth"
  fi
  if [[ ! -e $state/wheels-${#files[@]} ]]; then
    python3 -m pip --python "$python" install -q --no-index --no-deps --no-cache-dir "${files[@]}" || return 1
    touch "$state/wheels-${#files[@]}"
  fi
  "$python" -c 'import sys, pandas, numpy, scipy, papermill, pydantic, altair, httptools, gguf, pynvml
print(sys.version.split()[0], "pandas", pandas.__version__, "numpy", numpy.__version__, "scipy", scipy.__version__)'
  nvidia-smi --query-gpu=name,driver_version,memory.used,memory.total --format=csv,noheader
  command -v curl nvcc cmake ninja g++
}

source_() {
  [[ -d $state/llama.cpp/tools/server ]] && return
  mkdir -p "$state/llama.cpp" && tar -xJf "$state/parts/source.tar.xz" -C "$state/llama.cpp"
}

build_start() {
  local python_code='import pathlib, sys, yaml, labkit as lab
from labkit.engine.build import build_server
asked = yaml.safe_load(pathlib.Path("params/00_build.h200.yaml").read_text()) | {"backend": sys.argv[1], "tree": sys.argv[2]}
print(build_server(lab.Build(**asked))["seconds"])'
  [[ -e $state/logs/compiled ]] && return
  if [[ -e $state/compiling ]] && kill -0 "$(cat "$state/compiling")" 2>/dev/null; then return; fi
  setsid bash -c "$(printf '%q ' "$python" -c "$python_code" "$backend" "$state/llama.cpp") >$state/logs/compile.log 2>&1 && touch $state/logs/compiled" \
    </dev/null >/dev/null 2>&1 &
  echo $! >"$state/compiling"
  sleep 5 && tail -n 3 "$state/logs/compile.log"
}

model() {
  local file=$LABKIT_CACHE/SmolLM2-135M-Instruct.Q4_1.gguf
  [[ -e $file ]] && return
  cat "$state"/parts/model.[012] >"$file.tmp"
  if [[ $(sha256sum "$file.tmp" | cut -d' ' -f1) != $(cat "$state/parts/model.sha256") ]]; then
    say "the model's sha256 is wrong: a part is missing"; rm "$file.tmp"; return 1
  fi
  mv "$file.tmp" "$file"
}

toy8b() { "$python" -c 'import labkit as lab; print(lab.resolve_model("toy-8b"))'; }

compiled() { # wait for the compiler while there is time
  while [[ ! -e $state/logs/compiled ]]; do
    kill -0 "$(cat "$state/compiling")" 2>/dev/null || { tail -n 5 "$state/logs/compile.log"; return 1; }
    left 20 "the compiler: $(tail -n 1 "$state/logs/compile.log")" || return 1
    sleep 5
  done
}

build() { compiled && notebook build 00_build -p backend "$backend" -p tree "$state/llama.cpp"; }

notebook() { # folder, notebook, papermill's arguments
  local to=$state/executed/$1 name=$2 status
  shift 2
  mkdir -p "$to"
  [[ -e $to/$name.done ]] && return
  left "${NOTEBOOK_S:-100}" "$name in $(basename "$to")" || return 1
  local since=$SECONDS
  (cd "$to" && timeout -k 10 $((limit_s + 40 - SECONDS)) "$python" -m papermill "$state/repo/notebooks/$name.ipynb" "$name.ipynb" \
    -f "$state/repo/params/$name.h200.yaml" -p outputs "$state/runs/$(basename "$to")" --no-progress-bar "$@") \
    >"$state/logs/$(basename "$to")-$name.log" 2>&1
  status=$?
  say "$(basename "$to") $name: exit $status, $((SECONDS - since)) s; $(verdict "$(basename "$to")" "$name")"
  ((status == 0)) && touch "$to/$name.done" || tail -n 15 "$state/logs/$(basename "$to")-$name.log"
}

verdict() { # of the newest run
  "$python" - "$state/runs/$1" "$2" <<'PY'
import json, pathlib, sys
runs = sorted(pathlib.Path(sys.argv[1]).glob(f"{sys.argv[2]}/*/run.json"), key=lambda path: path.stat().st_mtime)
found = json.loads(runs[-1].read_text()).get("verdict") if runs else None
print(found["status"] if found else "no verdict")
for check in (found or {}).get("checks", []):
    print(f"    {check['name']}: {check['status']}; {check['observed']}; {check['why']}")
PY
}

notebooks() { # tag, two digits or nothing
  local file name number more
  for file in notebooks/0[1-5]_*.ipynb; do
    name=$(basename "$file" .ipynb) number=$(basename "$file" | cut -c1-2)
    [[ -n $2 && $2 != "$number" ]] && continue
    if [[ $1 == 8b ]]; then
      more=(-p model "${BIG:-toy-8b}")
      [[ $number == 01 ]] && more+=(-y "slots_list: [1, 4, 32]") # a server of 15 GB for each step and repeat
      NOTEBOOK_S=150 notebook 8b "$name" "${more[@]}"
    else
      notebook default "$name" -p model "${SMALL:-smollm2-135m}"
    fi
  done
}

curl_there() {
  command -v curl >/dev/null && return
  tar -xJf "$state/parts/curl.tar.xz" -C "$state"
  printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$state/curl" "$state/curl/curl" >"$state/venv/bin/curl"
  chmod +x "$state/venv/bin/curl" && export PATH=$state/venv/bin:$PATH
}

rates() { # tag, then arguments
  local tag=$1
  shift
  [[ -e $state/logs/rates-$tag.done ]] && return
  left 120 "rates $tag" || return 1
  curl_there
  "$python" -m tests.bench.rates --seconds $((limit_s - SECONDS - 60)) "$@" 2>&1 | tee "$state/logs/rates-$tag.log"
  tail -n 1 "$state/logs/rates-$tag.log" | grep -q '^{' && touch "$state/logs/rates-$tag.done"
}

collect() {
  local tag
  for tag in build default 8b; do
    [[ -d $state/executed/$tag ]] || continue
    tar -C "$state" --ignore-failed-read -cJf "$OUT/$tag.tar.xz" "executed/$tag" $(cd "$state" && ls -d "runs/$tag" 2>/dev/null)
  done
  tar -C "$state" --exclude='*.tmp' -cJf "$OUT/logs.tar.xz" logs
  cp "$LABKIT_CACHE"/builds/*/build/bin/build.json "$OUT/" 2>/dev/null
  ls -la "$OUT"
}

for step in "$@"; do
  say "== $step"
  case $step in
    parts | wheels | build_start | model | toy8b | build | collect) $step ;;
    source) source_ ;;
    default | 8b) notebooks "$step" "" ;;
    default:* | 8b:*) notebooks "${step%%:*}" "${step##*:}" ;;
    rates) rates default --engine build --slots 1 4 32 --tokens 256 --rounds 4 --blocks 3 ;;
    rates8b) rates 8b --engine build --model "${BIG:-toy-8b}" --slots 1 4 32 --tokens 128 --rounds 4 --blocks 1 ;;
    *) say "no such step: $step"; exit 2 ;;
  esac || say "$step: not done"
done
say "== end"
