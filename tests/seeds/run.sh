#!/usr/bin/env bash
# tests/seeds/run.sh BINARY: the config blocks of the first users' notes, word for word, each planned and trained for 20
# updates on the CPU with nothing added but data and, where the keys do not tell it, the kind of model. Those of the first
# note stand here (in its eleventh are two lines of prose, left out), and as a ladder in configs/summarizer*.yaml; those of the
# second are configs/*.json; those of the third stand here and say nothing of the model: a small one is added; those of the
# fourth, which name workers and batches, stand here. MILLRACE_FULL=1: the two larger ones of configs/*.json too.
set -u
[ $# -eq 1 ] && [ -x "$1" ] || {
  echo "usage: $0 BINARY" >&2
  exit 2
}
binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) configs=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../configs" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MILLRACE_CACHE=$work/cache
cd "$work" || exit 1
passed=0 failed=0

# Sums, as source and target; as a table; as a text.
for i in $(seq 0 299); do
  a=$((i % 10)) b=$((i / 10))
  echo "$a and $b" >>source.txt
  echo "$((a + b))" >>target.txt
done
{
  echo dialogue,note
  paste -d, source.txt target.txt
} >pairs.csv
# People who walk, for 20 to 60 frames.
for i in $(seq 0 39); do
  for t in $(seq 0 $((19 + i))); do echo "$((t * 10)) $i $((i + t)).5 $((t * t % 7)).25"; done
done >paths.txt
for _ in 1 2 3 4 5 6; do paste -d' ' source.txt target.txt; done >text.txt

# tried CONFIG OVERRIDE...: `plan` and `train` take it as it is.
tried() {
  local config=$1
  shift
  if "$binary" plan "$config" "$@" >out 2>&1 &&
    "$binary" train "$config" --max-steps 20 "$@" sample.length=0 >out 2>&1; then
    passed=$((passed + 1))
    return
  fi
  failed=$((failed + 1))
  printf 'FAILED %s %s\n' "$(basename "$config")" "$*"
  tail -20 out | sed 's/^/    /'
}

pairs=(device=cpu data.train=source.txt data.train_target=target.txt data.format=lines)
notes=(device=cpu data.train=pairs.csv "data.fields=[dialogue,note]" data.tokenizer=word)
for config in "$here"/000_*.yaml; do
  tried "$config" "${notes[@]}" model.type=pointer_generator
done
tried "$here/000_09_fast.yaml" "${notes[@]}" # its keys tell the model
for config in "$configs"/summarizer*.yaml; do
  tried "$config" "${notes[@]}" data.validation=[] data.test=[]
done
# The fifth note has no config, only numbers: one example an update, 25 of them, four workers. A small model stands for
# the one that it tunes.
"$binary" train "$configs/prototype.json" --max-steps 2 device=cpu data.train=source.txt data.format=lines data.tokenizer=byte \
  run_name=base sample.length=0 >out 2>&1
for i in $(seq 1 25); do echo "{\"prompt\": \"$i and $i:\", \"answer\": \" $((i + i))\"}"; done >examples.jsonl
tried "$configs/finetune.yaml" device=cpu model.init_from=base data.train=examples.jsonl training.max_length=64
tried "$configs/finetune.yaml" device=cpu model.init_from=base data.train=examples.jsonl training.max_length=64 model.lora.rank=4
for config in "$here"/003_*.yaml "$configs"/trajectory.yaml; do
  tried "$config" device=cpu model.type=trajectory data.train=paths.txt data.format=trajectories model.d_model=32 training.max_length=20
done
sizes=(prototype)
[ "${MILLRACE_FULL:-0}" = 1 ] && sizes+=(quality production)
for size in "${sizes[@]}"; do
  tried "$configs/$size.json" "${pairs[@]}" model.type=seq2seq
  tried "$configs/$size.json" device=cpu data.train=text.txt
done
for config in "$here"/002_*.yaml; do
  tried "$config" device=cpu data.train=text.txt model.d_model=64 model.num_layers=2
done
echo "seeds: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
