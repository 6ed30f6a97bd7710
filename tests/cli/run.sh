#!/usr/bin/env bash
# tests/cli/run.sh BINARY: the program as a person meets it. Refusals: exit code, a message that says where, what
# was expected, what it got and what to do, and nothing created on disk. Reports: plan, train, signals,
# colours. Ends with "cli: N passed, 0 failed", or details and exit code 1.
set -u
[ $# -eq 1 ] && [ -x "$1" ] || {
  echo "usage: $0 BINARY" >&2
  exit 2
}
binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
child=
trap '[ -n "$child" ] && kill -KILL "$child" 2>/dev/null; rm -rf "$work"' EXIT
export MILLRACE_CACHE=$work/cache # outside the folder that must stay as it is
unset NO_COLOR CLICOLOR_FORCE
box=$work/box
mkdir "$box"
cd "$box" || exit 1
passed=0 failed=0

# report NAME PROBLEM: an empty problem is a pass.
report() {
  if [ -z "$2" ]; then
    passed=$((passed + 1))
    return
  fi
  failed=$((failed + 1))
  printf 'FAILED %s\n%s\n' "$1" "$2"
  [ -s "$work/out" ] && sed 's/^/    out: /' "$work/out" | head -20
  [ -s "$work/err" ] && sed 's/^/    err: /' "$work/err" | head -20
}
# Runs the program; leaves $code, $work/out and $work/err.
run() {
  timeout 120 "$binary" "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
}
listing() { find . -printf '%p %y %s %T@\n' | sort; }

# refused NAME CODE WORD... -- ARGUMENT...: the program says no, with these words, and leaves no trace.
refused() {
  local name=$1 expected=$2 words=() problem="" before word
  shift 2
  while [ "$1" != -- ]; do
    words+=("$1")
    shift
  done
  shift
  before=$(listing)
  run "$@"
  [ "$code" -eq "$expected" ] || problem+="  exit code $code, expected $expected"$'\n'
  for word in "${words[@]}"; do
    grep -qF -e "$word" "$work/err" || problem+="  the message lacks \`$word\`"$'\n'
  done
  [ -s "$work/out" ] && problem+="  it wrote to standard output"$'\n'
  [ "$before" = "$(listing)" ] || problem+="  it changed the folder:"$'\n'$(diff <(echo "$before") <(listing))
  report "$name" "$problem"
}

# holds NAME CODE WORD...: the last run ended with this code and said these words, on either stream.
holds() {
  local name=$1 expected=$2 problem="" word
  shift 2
  [ "$code" -eq "$expected" ] || problem+="  exit code $code, expected $expected"$'\n'
  for word in "$@"; do
    grep -qF -e "$word" "$work/out" "$work/err" || problem+="  it does not say \`$word\`"$'\n'
  done
  report "$name" "$problem"
}
# unwritten ARGUMENT...: where standard output cannot be written the program says so, and does not say that all is well.
unwritten() {
  timeout 120 "$binary" "$@" >/dev/full 2>"$work/err" </dev/null
  code=$?
  : >"$work/out"
  report "$* where standard output cannot be written" "$([ "$code" -eq 1 ] && grep -q 'standard output cannot be written' "$work/err" || echo "  exit code $code, or another message")"
}
# is_json FILE: one JSON value (RFC 8259) and nothing else.
is_json() {
  awk '
    function space() { while (at <= n && index(" \t\r\n", substr(s, at, 1))) at++ }
    function take(pattern) {
      if (!match(substr(s, at), pattern)) return 0
      at += RLENGTH
      return 1
    }
    function text() { return take("^\"([^\"\\\\]|\\\\[\"\\\\/bfnrtu])*\"") }
    function list(close_with, is_map) {
      at++
      space()
      if (substr(s, at, 1) == close_with) { at++; return 1 }
      while (1) {
        space()
        if (is_map) {
          if (!text()) return 0
          space()
          if (substr(s, at, 1) != ":") return 0
          at++
        }
        if (!value()) return 0
        space()
        if (substr(s, at, 1) == close_with) { at++; return 1 }
        if (substr(s, at, 1) != ",") return 0
        at++
      }
    }
    function value(c) {
      space()
      c = substr(s, at, 1)
      if (c == "{") return list("}", 1)
      if (c == "[") return list("]", 0)
      if (c == "\"") return text()
      return take("^(true|false|null|-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?)")
    }
    { s = s $0 "\n" }
    END { n = length(s); at = 1; good = value(); space(); exit !(good && at > n) }
  ' "$1"
}
for text in '{"a": [1, -2.5e3, "x\"y", {}], "b": null}' '[]' '"s"'; do
  is_json <(echo "$text") || report "the JSON check takes $text" "  it does not"
done
for text in '{"a": 1,}' '{a: 1}' '[1 2]' '{"a": nan}' '' '{} {}' '01'; do
  is_json <(echo "$text") && report "the JSON check refuses $text" "  it does not"
done
# field NAME FILE: a number or text of a flat JSON object.
field() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$2" | head -1; }

cat >good.yaml <<'YAML'
run_name: tiny
model:
  type: gpt
  d_model: 32
  num_layers: 2
  num_heads: 2
data:
  train: builtin:grammar
  grammar_chars: 20000
training:
  batch_size: 2
  max_length: 16
  max_steps: 3
  log_interval: 1
sample:
  length: 10
YAML
good_with() { sed "$1" good.yaml >"$2"; }

# --- What is refused, and how.
good_with 's/num_layers/num_layres/' typo.yaml
refused "unknown key" 2 'typo.yaml:5:3' '`model.num_layres`' 'expected:' 'got:' 'remedy:' 'did you mean `model.num_layers`' -- train typo.yaml
refused "unknown key on the command line" 2 'command line' 'training.batchsize' 'training.batch_size' 'remedy:' -- train good.yaml training.batchsize=4
refused "unknown section" 2 'modle.d_model' 'remedy:' -- train good.yaml modle.d_model=4
good_with 's/num_layers: 2/num_layers: two/' type.yaml
refused "wrong type" 2 'type.yaml:5:15' '`model.num_layers`' 'expected: an integer' 'got:      `two`' 'remedy:' -- train type.yaml
good_with 's/max_length: 16/max_length: [16]/' list.yaml
refused "a list for a number" 2 'list.yaml:12:15' 'training.max_length' 'expected:' 'got:' 'remedy:' -- train list.yaml
good_with 's/batch_size: 2/batch_size: 0/' range.yaml
refused "out of range" 2 'range.yaml:11:15' '`training.batch_size`' 'at least 1' 'got:      `0`' 'remedy:' -- train range.yaml
refused "out of range on the command line" 2 'command line: training.learning_rate=-1' 'expected:' 'got:' 'remedy:' -- train good.yaml training.learning_rate=-1
refused "a number that is none" 2 'training.learning_rate' 'expected:' 'got:' -- train good.yaml training.learning_rate=nan
refused "no such choice" 2 'training.optimizer' 'adamw' 'got:' 'remedy:' -- train good.yaml training.optimizer=adamm
refused "no such device" 2 'command line: device=gpu' 'expected: auto, cpu, cuda, or cuda:N' 'got:      gpu' 'remedy:' -- train good.yaml device=gpu
refused "a device number that is none" 2 'device=cuda:x' 'expected:' 'remedy:' -- train good.yaml device=cuda:x
refused "what does not fit the machine" 3 'good.yaml:11:15' 'training.batch_size' 'expected: at most' 'got:' 'remedy:' 'model.d_model=' -- train good.yaml device=cpu model.d_model=65536
run train good.yaml run_name=blank sample.length=0
printf 'the\n\nhe\n' >blank.txt
for way in "--beam 0" "--beam 3"; do
  run generate blank --input blank.txt --max-tokens 5 $way
  report "an empty prompt among others, $way" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 3 ] && [ -z "$(sed -n 2p "$work/out")" ] || echo "  exit code $code, or not three lines with an empty one")"
done
printf '{"prompt": "a b", "answer": "c"}\n{"prompt": "x", "answer": "y z"}\n' >two.jsonl
run train good.yaml data.train=two.jsonl 'data.fields=[prompt, answer]' data.batching=buckets training.batch_size=1
holds "nothing is drawn for validation" 0 'no record was drawn for validation' 'data.validation_fraction' 'the model writes:'
rm -r runs blank.txt two.jsonl
refused "a precision the CPU does not have" 2 'command line: training.precision=fp16' 'expected: auto, fp32' 'got:      fp16' 'remedy:' -- train good.yaml device=cpu training.precision=fp16
if command -v nvidia-smi >/dev/null; then
  refused "a GPU that is not there" 2 'cuda:99' 'remedy:' -- train good.yaml device=cuda:99
else
  refused "no GPU" 2 'remedy:' 'device' -- train good.yaml device=cuda
fi
refused "missing config" 2 'nowhere.yaml' 'remedy:' -- train nowhere.yaml
refused "a folder as config" 2 'remedy:' -- train .
: >empty.yaml
refused "empty config" 2 'empty.yaml:1:1' 'expected:' 'got:' 'remedy:' -- train empty.yaml
printf 'model: {type: gpt\ntraining: [1, 2\n' >syntax.yaml
refused "YAML syntax" 2 'syntax.yaml:' 'expected: YAML or JSON' 'got:' 'remedy:' -- plan syntax.yaml
grep -qE 'syntax\.yaml:[0-9]+:[0-9]+' "$work/err" || report "YAML syntax has a place" "  no line and column"
printf 'run_name: a\nrun_name: b\n' >twice.yaml
refused "a key twice" 2 'twice.yaml:2:1' 'run_name' 'remedy:' -- plan twice.yaml
printf '{"run_name": "x", "model": {"d_model": "wide"}}' >type.json
refused "wrong type in JSON" 2 'type.json:1:' '`model.d_model`' 'expected: an integer' 'got:' 'remedy:' -- plan type.json
refused "d_model not divisible by num_heads" 2 'command line: model.num_heads=5' 'expected:' 'got:' 'not divisible' 'model.num_heads=4' -- plan good.yaml model.num_heads=5
good_with 's/num_heads: 2/num_heads: 5/' heads.yaml
refused "the same with its place" 2 'heads.yaml:6:14' '`model.num_heads`' 'remedy:' -- train heads.yaml
refused "missing data" 2 'data.train' 'nowhere.txt' 'expected:' 'got:' 'remedy:' -- train good.yaml data.train=nowhere.txt
: >empty.txt
refused "empty data" 2 'data.train' 'empty.txt is empty' 'expected:' 'got:' 'remedy:' -- train good.yaml data.train=empty.txt
echo short >short.txt
refused "text shorter than one window" 2 'data.train' 'at least 17 tokens' 'got:      6 tokens in short.txt' 'training.max_length=' -- train good.yaml data.train=short.txt
printf 'line one is fine\nbut here \xff\xfe it is not\n' >latin.txt
refused "invalid UTF-8 with the character tokenizer" 2 'latin.txt:2:10' 'expected: UTF-8' 'FF FE' 'data.tokenizer=byte' -- train good.yaml data.train=latin.txt
refused "the same with a tokenizer of words" 2 'latin.txt:2:10' 'expected: UTF-8' 'FF FE' 'data.on_bad_record=skip' -- train good.yaml data.train=latin.txt data.tokenizer=word data.format=lines
printf '\xff\xfeo\0n\0e\0\n\0' >wide.csv
refused "UTF-16" 2 'the file is UTF-16' 'wide.csv:1:1 (byte 0)' 'expected: UTF-8' 'got:      bytes FF FE' 'iconv -f UTF-16' -- train good.yaml data.train=wide.csv
# What a config says is refused where it says it.
for change in 'train: nowhere.txt' 'validation: nowhere.txt' 'tokenizer: nowhere.json' 'tokenizer: bite' 'format: xml' 'test_fraction: 0.1'; do
  key=${change%%:*}
  sed "/^  train:/d; s/^data:/data:\n  $change/" good.yaml >said.yaml
  [ "$key" = train ] || sed -i 's/^  grammar_chars: .*/  train: latin.txt/' said.yaml
  refused "its place: $change" 2 "said.yaml:8:$((${#key} + 5)): " 'expected:' 'got:' 'remedy:' -- train said.yaml
done
printf 'model: {type: gpt, d_model: 32, num_heads: 2, vocab_size: 2}\ndata: {train: good.yaml, tokenizer: word}\n' >said.yaml
refused "a vocabulary too small, where it was asked for" 2 'said.yaml:1:59: `model.vocab_size`' 'expected: 4 to' 'got:      2' 'remedy:' -- train said.yaml
refused "unknown tokenizer" 2 'data.tokenizer' '`char`, `byte`, `word`' '`bite`' 'did you mean `byte`' -- train good.yaml data.tokenizer=bite
refused "missing tokenizer file" 2 'data.tokenizer' 'nowhere.json' 'expected:' 'got:' 'remedy:' -- train good.yaml data.tokenizer=nowhere.json
echo '{"model": {"type": "Unigram"}}' >unigram.json
refused "tokenizer file of another kind" 2 'unigram.json: model.type' '`Unigram`' 'expected:' 'remedy:' -- train good.yaml data.tokenizer=unigram.json
refused "unknown sub-command" 2 'trian' -- trian good.yaml
refused "unknown flag" 2 '--memroy' 'millrace plan has no option' 'expected: ' '--grid' 'remedy:   did you mean `--memory`?' -- plan good.yaml --memroy 1GiB
refused "unknown flag beside what is missing" 2 'no option `--metrc`' 'did you mean `--metric`?' -- score --metrc bleu
refused "a number that is too large" 2 'command line: --beam 1000000000' 'expected: an integer, 0 to 1024' 'got:      `1000000000`' 'remedy:   --beam' -- generate nowhere --prompt a --beam 1000000000
refused "a word for a number" 2 'command line: --seed one' 'expected: an integer, at least 0' 'got:      `one`' 'remedy:   --seed 1' -- generate nowhere --prompt a --seed one
refused "a number that is none" 2 '--temperature nan' 'expected: a number, 0 to 100' 'remedy:   --temperature 0.8' -- generate nowhere --prompt a --temperature nan
refused "an option without its value" 2 'expected: one value' '--max-tokens' 'remedy:   millrace generate --help' -- generate nowhere --max-tokens
refused "no model" 2 'RUN is missing' 'command line: millrace eval' 'expected: run folder or name' 'got:      nothing' 'remedy:   millrace eval --help' -- eval
refused "a sub-command of data that is none" 2 'expected: stats, prepare' 'got:      `stast`' 'remedy:   did you mean `stats`?' -- data stast good.yaml
refused "data alone" 2 'expected: stats, prepare' 'got:      nothing' 'remedy:   millrace data --help' -- data
refused "one word too many" 2 'got:      `third`' 'remedy:   leave it out' -- compare first second third
refused "a page that is none" 2 'expected: one of config, ops' 'did you mean `config`?' -- docs confg
refused "bad --memory" 2 'command line: --memory lots' 'expected:' 'got:      lots' 'remedy:' -- plan good.yaml --memory lots
refused "negative --memory" 2 '--memory' 'expected:' 'remedy:' -- plan good.yaml --memory=-5GiB
refused "two configs" 2 'other.yaml' 'expected:' 'remedy:' -- plan good.yaml other.yaml
refused "unknown pass" 2 'runtime.passes_off' 'fuse_elementwise' 'got:' 'remedy:' -- plan good.yaml runtime.passes_off=fuse
refused "run name that is a path" 2 'run_name' 'expected:' 'remedy:' -- train good.yaml --run-name ../outside

# --- plan
run plan good.yaml
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"
for word in parameters compute memory 'key/value cache' 'fits         yes' 'largest that fits' passes; do
  grep -qF -e "$word" "$work/out" || problem+="  the report lacks \`$word\`"$'\n'
done
[ -s "$work/err" ] && problem+="  it wrote to standard error"
report "plan" "$problem"

run plan good.yaml --json
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"
is_json "$work/out" || problem+="  not JSON"
for key in fits parameters arena_bytes largest_batch plan_hash; do
  [ -n "$(field "$key" "$work/out")" ] || problem+="  no \"$key\""$'\n'
done
report "plan --json" "$problem"
hash=$(field plan_hash "$work/out") arena=$(field arena_bytes "$work/out")

# --- profile
run profile good.yaml --steps 6 runs_folder=profiled
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"
for word in 'an update' 'the whole' 'where the time of an update goes' residual 'by component' 'by op'; do
  grep -qF -e "$word" "$work/out" || problem+="  the report lacks \`$word\`"$'\n'
done
for file in trace.json.gz timeline.svg profile.tsv run.json; do
  compgen -G "profiled/*-profile/2*/$file" >/dev/null || problem+="  no $file"$'\n'
done
[ -e profiled/latest ] && problem+="  it is the latest run, which training would go on with"$'\n'
report "profile" "$problem"
rm -rf profiled
refused "profile of too few updates" 2 '--steps' -- profile good.yaml --steps 2
refused "profile of what does not fit" 3 'remedy:' -- profile good.yaml runtime.memory_limit=1KB

# --- doctor
small=(model.d_model=32 model.num_layers=1 training.max_steps=50 data.grammar_chars=100000 runs_folder=diagnosed)
run doctor "${small[@]}" --quick
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"
for word in machine 'an update' ' for 50 updates at this pace' ' parameters' residual report.html report.md report.json; do
  grep -qF -e "$word" "$work/out" || problem+="  the report lacks \`$word\`"$'\n'
done
for file in report.html report.md report.json run.json trials/*/2*/timeline.svg; do
  compgen -G "diagnosed/*-doctor/2*/$file" >/dev/null || problem+="  no $file"$'\n'
done
compgen -G 'diagnosed/*-doctor/2*/trials/*/2*/trace.json.gz' >/dev/null && problem+="  a trace is left"$'\n'
is_json diagnosed/*-doctor/2*/report.json || problem+="  report.json is not JSON"$'\n'
for word in '<!DOCTYPE html>' '<svg ' 'forward pass' 'millrace doctor model.d_model=32' '</html>'; do
  grep -qF -e "$word" diagnosed/*-doctor/2*/report.html || problem+="  report.html lacks \`$word\`"$'\n'
done
report "doctor --quick" "$problem"
rm -rf diagnosed
# Too many cores left idle to be passed over, unless there is one only.
if [ "$(nproc)" -gt 1 ]; then
  run doctor "${small[@]}" runtime.threads=1 --quick --json --fail-on low
  problem=
  [ "$code" -eq 4 ] || problem+="  exit code $code, expected 4"$'\n'
  is_json "$work/out" || problem+="  not JSON"$'\n'
  [ "$(field severity "$work/out")" = none ] && problem+="  nothing was found"$'\n'
  grep -qF 'host.threads' "$work/out" || problem+="  host.threads was not found"$'\n'
  report "doctor --json --fail-on" "$problem"
  rm -rf diagnosed
fi
# A loss that is no number, and data that are over soon.
printf 'model: {type: gpt, d_model: 32, num_layers: 1, num_heads: 2}\ntraining: {optimizer: sgd, learning_rate: 300, gradient_clip: 0' >wild.yaml
printf ', batch_size: 4, max_length: 64, max_steps: 6000}\nhealth: {max_skipped: 1000000}\ndata: {grammar_chars: 40000}\n' >>wild.yaml
run doctor wild.yaml --quick runs_folder=diagnosed
holds "doctor of what cannot be trained" 0 'the loss is not finite' 'the data repeats every'
report "its report.json" "$(is_json diagnosed/*-doctor/2*/report.json || echo '  not JSON')"
rm -rf diagnosed
run doctor "${small[@]}" training.eval_every=1 --time-budget 0.1s --allow-busy
holds "doctor in no time" 0 '--time-budget 0.1s was over' 'nothing that could help was tried' 'not tried' 'the time was up; --time-budget '
rm -rf diagnosed
# What was measured is what the command trains: the data set, and the memory that it had to fit in.
yes 'all work and no play' | head -c 400000 >work.txt
printf 'model: {d_model: 32, num_layers: 1}\ndatasets:\n  "all work": {train: work.txt, max_chars: 300000, validation_fraction: 0.5}\n' >sets.yaml
printf 'training: {max_steps: 500, eval_every: 1, max_eval_batches: 20}\ncheckpoint: {keep_best: 0}\n' >>sets.yaml
run doctor sets.yaml --dataset 'all work' --memory 1GiB --time-budget 40s --allow-busy runs_folder=diagnosed
holds "doctor --dataset --memory" 0 'data.max_chars takes 300,000 characters of files of 391 KiB'
# On a machine so busy that ten times as fast is lost in its noise there is no other config.
grep -qF 'config.optimized.yaml' "$work/out" &&
  holds "what doctor would train" 0 'config.optimized.yaml --dataset '"'all work'" '+  memory_limit: 1GiB'
rm -rf diagnosed
for budget in soon 0 -5m 5x 1e9h nan; do
  refused "doctor --time-budget $budget" 2 '--time-budget' 'expected' '90s, 5m, 1h' 'remedy:' -- doctor "${small[@]}" "--time-budget=$budget"
done
refused "doctor --fail-on" 2 '--fail-on' 'low, medium or high' 'remedy:' -- doctor "${small[@]}" --fail-on awful
refused "a key that asks for what cannot be done wrong here" 2 'there is no key `data.pin_memory`' 'expected: none: batches always go to a device through pinned memory' 'remedy:' -- plan "${small[@]}" data.pin_memory=false
refused "tokenizing beside the step" 2 'no step waits for it' 'remedy:' -- train "${small[@]}" data.tokenize_on_the_fly=true
refused "validation behind the loop" 2 'training.eval_every' 'remedy:' -- train "${small[@]}" training.validate_after_training=true
refused "a second forward pass" 2 'one forward pass' 'remedy:' -- train "${small[@]}" training.double_forward=true
refused "tune --time-budget" 2 '--time-budget' '90s, 5m, 1h' -- tune "${small[@]}" --time-budget soon
refused "doctor of what does not fit" 3 'remedy:' -- doctor "${small[@]}" --memory 1KB --allow-busy

run plan good.yaml --json --why
is_json "$work/out" && grep -q '"kernel"' "$work/out"
report "plan --json --why" "$([ $? -eq 0 ] || echo '  not JSON, or without kernels')"
run plan good.yaml --why
grep -q 'kernels of the step' "$work/out"
report "plan --why" "$([ $? -eq 0 ] || echo '  no kernels')"

# --- plan: other batches and lengths, times, devices that are not here
run plan good.yaml device=cpu
holds "plan predicts a time" 0 'time         at least' 'for 3 updates' 'energy not known'
run plan good.yaml --grid
holds "plan --grid" 0 'batch x length in' '16 (now)' '>       2' 'to spare' 'tokens/s'
run plan good.yaml --grid --json
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"
is_json "$work/out" || problem+="  not JSON"
for key in least_seconds run_seconds measured margin_bytes needed_bytes tokens_per_second changes; do
  grep -q "\"$key\"" "$work/out" || problem+="  no \"$key\""$'\n'
done
report "plan --grid --json" "$problem"
run plan good.yaml --grid --memory "$((arena * 98 / 100))"
holds "plan --grid names what makes it fit" 0 'the fastest first' 'runtime.memory_limit=' 'needs' 'most is'
run plan good.yaml --grid --memory 1KB
holds "plan --grid of what cannot fit" 3 'batch x length' 'neither recomputing' 'does not fit' 'remedy:'
run plan good.yaml --device h200
holds "plan --device h200" 0 'device       NVIDIA H200 in bf16' 'estimated: without the workspaces of libraries' 'measured there' 'of the device'
run plan good.yaml --device nvidia-h200 --grid --json
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"
is_json "$work/out" || problem+="  not JSON"
[ "$(field memory_is_exact "$work/out")" = false ] || problem+="  an estimate that is called exact"
report "plan --device --grid --json" "$problem"
run plan good.yaml --device h200 training.precision=fp32
holds "a device in a precision nobody measured" 0 'NVIDIA H200 in fp32' 'time         not known'
run plan good.yaml --device cpu
holds "plan --device cpu" 0 'device       cpu in fp32' ', exact'
cp "$repository/configs/devices/nvidia-h200.json" gpu.json
sed -i 's/NVIDIA H200/small card/; s/150109880320/100000000/' gpu.json
run plan good.yaml --device gpu.json
holds "plan --device FILE of a card that is too small" 3 'does not fit' 'context and libraries'
sed -i 's/"overhead_bytes": [0-9]*,//' gpu.json
run plan good.yaml --device gpu.json
holds "plan --device FILE" 0 'device       small card in bf16' '95.4 MiB of the device'
sed 's/"seconds": /"secs": /' gpu.json >typo-gpu.json
refused "a device file with a wrong key" 2 'typo-gpu.json: precisions.bf16.ops' 'expected: a value for `seconds`' 'remedy:' -- plan good.yaml --device typo-gpu.json
echo '{' >bad-gpu.json
refused "a device file that is none" 2 'bad-gpu.json' 'expected: a JSON object' 'got:' 'remedy:' -- plan good.yaml --device bad-gpu.json
other=$(grep -l '"on_host": true' "$MILLRACE_CACHE"/machines/*.json | head -1)
sed 's/"memory_bytes": [0-9]*/"memory_bytes": 8000000000/' "$other" >other-cpu.json
run plan good.yaml --device other-cpu.json --grid
holds "plan --device FILE of another CPU" 0 'threads' 'in fp32' '7.45 GiB of the device' 'measured there' 'batch x length in 7.45 GiB'
refused "a precision that CPU does not have" 2 'does not compute in bf16' 'remedy:' -- plan good.yaml --device other-cpu.json training.precision=bf16
rm -f other-cpu.json
refused "a device nobody knows" 2 'command line: --device h300' 'nvidia-h200' 'got:      h300' 'remedy:' -- plan good.yaml --device h300
rm -f gpu.json typo-gpu.json bad-gpu.json

cat >good.json <<'JSON'
{"run_name": "tiny", "model": {"type": "gpt", "d_model": 32, "num_layers": 2, "num_heads": 2},
 "data": {"train": "builtin:grammar", "grammar_chars": 20000},
 "training": {"batch_size": 2, "max_length": 16, "max_steps": 3, "log_interval": 1}, "sample": {"length": 10}}
JSON
run plan good.json --json
report "the same config as JSON gives the same plan" "$([ "$code" -eq 0 ] && [ "$(field plan_hash "$work/out")" = "$hash" ] || echo "  exit code $code, hash $(field plan_hash "$work/out") against $hash")"

before=$(listing)
run plan good.yaml --json training.batch_size=3
report "another batch gives another plan" "$([ "$code" -eq 0 ] && [ "$(field plan_hash "$work/out")" != "$hash" ] || echo '  the same hash')"
report "plan leaves the folder alone" "$([ "$before" = "$(listing)" ] || echo '  it changed')"

# The exact need is enough; the leanest plan is found; below it, exit code 3 with contributors and remedies.
run plan good.yaml --memory "$arena"
report "plan --memory with exactly what is needed" "$([ "$code" -eq 0 ] || echo "  exit code $code")"
run plan good.yaml --memory 1KB --json
problem=
[ "$code" -eq 3 ] || problem+="  exit code $code"
is_json "$work/out" || problem+="  not JSON"
[ "$(field fits "$work/out")" = false ] || problem+="  it says that it fits"
report "plan --memory --json below the need" "$problem"
leanest=$(field arena_bytes "$work/out")
limit=$((leanest * 9 / 10))
refused "plan --memory below the need" 3 'does not fit' 'good.yaml:11:15' 'expected: at most' 'got:' 'largest:' 'remedy:' 'a memory limit of at least' -- plan good.yaml --memory "$limit"
contributors=$(sed -n 's/.*largest: //p' "$work/err" | tr ',' '\n' | grep -cE '[0-9] (B|[KMG]iB)$')
report "three largest contributors" "$([ "$contributors" -eq 3 ] || echo "  $contributors")"
remedies=$(sed -n '/remedy:/,$p' "$work/err" | sed 's/^ *remedy: *//; s/^ *//')
count=$(echo "$remedies" | grep -c .)
report "at least three remedies" "$([ "$count" -ge 3 ] || echo "  $count")"
# Each remedy that is a change of the config does what it says.
while read -r line; do
  overrides=$(echo "${line%%(*}" | xargs)
  case $line in *=*) ;; *) continue ;; esac
  case $line in *'not enough alone'*) continue ;; esac
  # shellcheck disable=SC2086 # several overrides in one remedy
  run plan good.yaml --memory "$limit" $overrides
  report "remedy \`$overrides\` fits" "$([ "$code" -eq 0 ] || echo "  exit code $code")"
done <<<"$remedies"
# Even where nothing alone is enough, three ways to come nearer are named with what they would need.
run plan good.yaml --memory 1KB
count=$(sed -n '/remedy:/,$p' "$work/err" | grep -c 'not enough alone')
report "at least three remedies far below the need" "$([ "$code" -eq 3 ] && [ "$count" -ge 3 ] || echo "  exit code $code, $count")"
refused "train within a limit that is too small" 3 'does not fit' 'remedy:' -- train good.yaml "runtime.memory_limit=$limit"

# Small files in the place of those that the configs name.
mkdir -p stand-in
for i in $(seq 400); do
  echo "a sentence with the number $((i * 7919 % 1000)) in it" >>stand-in/lines
  echo "\"a talk about
$((i * 7919 % 1000))\",\"a note $i\"" >>stand-in/rows
  printf '%d\t%d\t%d.5\t1.0\n' $((i % 20 * 10)) $((i / 20)) "$i" >>stand-in/path.txt
done
for split in train val test; do
  for language in en de; do cp stand-in/lines "stand-in/$split.$language"; done
  { echo dialogue,section_text && cat stand-in/rows; } >"stand-in/$split.csv"
done
for config in "$repository"/configs/*.yaml "$repository"/configs/*.json; do
  case $(basename "$config") in
  trajectory.yaml)
    own=(data.folder=stand-in data.train=path.txt)
    run data stats "$config" "${own[@]}"
    holds "data stats trajectory.yaml" 0 'paths        '
    ;;
  finetune.yaml) continue ;; # wants weights: below
  multi30k.yaml | mts-dialog.yaml | translator.yaml | summarizer*.yaml) own=(data.folder=stand-in data.vocab_size=300) ;;
  *) own=(data.train=builtin:grammar data.grammar_chars=20000) ;;
  esac
  run plan "$config" "${own[@]}" training.batch_size=2
  report "plan $(basename "$config")" "$([ "$code" -eq 0 ] && grep -q 'fits         yes' "$work/out" || echo "  exit code $code")"
done

# --- train
run train good.yaml seed=7
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"$'\n'
for file in config.yaml config.resolved.yaml overrides.txt plan.txt profile.tsv run.json metrics.jsonl checkpoints/checkpoint-3/model.safetensors \
  checkpoints/checkpoint-3/config.json checkpoints/checkpoint-3/tokenizer.json; do
  [ -s "runs/latest/$file" ] || problem+="  no $file"$'\n'
done
[ "$(ls runs)" = $'latest\ntiny' ] || problem+="  runs/ holds: $(ls runs)"$'\n'
cmp -s good.yaml runs/latest/config.yaml || problem+="  config.yaml is not the config"$'\n'
grep -qx 'seed=7' runs/latest/overrides.txt || problem+="  overrides.txt lacks the override"$'\n'
[ "$(field status runs/latest/run.json)" = "done" ] || problem+="  status $(field status runs/latest/run.json)"$'\n'
[ "$(field step runs/latest/run.json)" = 3 ] || problem+="  steps $(field step runs/latest/run.json)"$'\n'
for file in run.json checkpoints/checkpoint-3/config.json checkpoints/checkpoint-3/tokenizer.json; do
  is_json "runs/latest/$file" || problem+="  $file is not JSON"$'\n'
done
while read -r line; do
  is_json <(echo "$line") || problem+="  a line of metrics.jsonl is not JSON: $line"$'\n'
done <runs/latest/metrics.jsonl
[ "$(grep -c '"type":"train"' runs/latest/metrics.jsonl)" -eq 3 ] || problem+="  not three metric lines"$'\n'
grep -q 'where the time went' "$work/out" || problem+="  no account of the time on standard output"$'\n'
grep -q 'step=3/3' "$work/err" || problem+="  no progress on standard error"$'\n'
report "train" "$problem"

first=$(readlink -f runs/latest)
run plan runs/latest/config.resolved.yaml --json
report "the resolved config gives the same plan" "$([ "$code" -eq 0 ] && [ "$(field plan_hash "$work/out")" = "$hash" ] || echo "  exit code $code, hash $(field plan_hash "$work/out") against $hash")"
run train good.yaml seed=7 runtime.threads=1
report "the same seed on one thread gives the same weights" "$([ "$code" -eq 0 ] && [ "$first" != "$(readlink -f runs/latest)" ] && cmp "$first/checkpoints/checkpoint-3/model.safetensors" runs/latest/checkpoints/checkpoint-3/model.safetensors 2>&1 || echo "  exit code $code, or other weights")"
run train good.yaml --run-name other --max-steps 2 training.grad_accum=2
report "--run-name, --max-steps and accumulation" "$([ "$code" -eq 0 ] && [ -d runs/other ] && [ "$(field step runs/latest/run.json)" = 2 ] || echo "  exit code $code")"
run train good.yaml runs_folder=elsewhere/deep
report "runs_folder" "$([ "$code" -eq 0 ] && [ -s elsewhere/deep/latest/run.json ] || echo "  exit code $code")"

# --- generate
checkpoint=$first/checkpoints/checkpoint-3
run generate "$first" --prompt the --max-tokens 40 --seed 3 # more than max_length
cp "$work/out" "$work/text"
report "generate from a run folder" "$([ "$code" -eq 0 ] && [ "$(wc -m <"$work/out")" -eq 40 ] && grep -q 'tok/s' "$work/err" || echo "  exit code $code, $(wc -m <"$work/out") characters")"
run generate "$checkpoint" --prompt the --max-tokens 40 --seed 3
report "the same from the checkpoint" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code, or another text")"
run generate "$checkpoint" --prompt the --max-tokens 40 --seed 4
report "another seed, another text" "$([ "$code" -eq 0 ] && ! cmp -s "$work/text" "$work/out" || echo "  exit code $code, or the same text")"
run generate "$checkpoint" --prompt-ids 1,2,3 --ids --max-tokens 5 --temperature 0 --top-k 3 --top-p 0.5
report "generate --prompt-ids --ids" "$([ "$code" -eq 0 ] && grep -qxE '([0-9]+ ){5}' "$work/out" && [ "$(wc -l <"$work/out")" -eq 1 ] || echo "  exit code $code")"
run generate "$checkpoint" --prompt the --max-tokens 0
report "no tokens" "$([ "$code" -eq 0 ] && [ ! -s "$work/out" ] || echo "  exit code $code, or some text")"
run train good.yaml --run-name bytes --max-steps 1 data.tokenizer=byte model.positions=rotary model.num_kv_heads=1
run generate runs/bytes/* --prompt 'é☃' --max-tokens 300 --temperature 20
report "bytes come out as UTF-8, from a shape without a name elsewhere" "$([ "$code" -eq 0 ] && iconv -f UTF-8 -t UTF-8 "$work/out" >/dev/null && [ "$(wc -m <"$work/out")" -gt 100 ] || echo "  exit code $code, or not UTF-8")"
name=$(basename "$(dirname "$first")")
for run_of in "runs/$name/" "$name/" "runs/$name" "$first/" "$name"; do
  run generate "$run_of" --prompt the --max-tokens 5
  holds "generate $run_of" 0
done
run export "runs/$name/" completed
holds "export runs/$name/" 0 'parameters in'
rm -r completed
refused "a folder of no runs" 2 'no run at `runs/`' 'a folder without run.json' 'remedy:' -- generate runs/ --prompt the
unwritten generate "$checkpoint" --prompt the --max-tokens 5
for json in '' --json; do
  unwritten plan good.yaml $json
  unwritten data stats good.yaml $json
  unwritten data prepare good.yaml $json
  unwritten runs $json
  unwritten eval "$checkpoint" $json
done
unwritten plan good.yaml --memory 1KiB --grid
mkdir none
unwritten runs none
rmdir none
unwritten docs
unwritten --help
unwritten --version
unwritten train --help
unwritten train good.yaml --run-name unwritten
unwritten export "$checkpoint" unwritten
rm -r unwritten
refused "generate without a prompt" 2 'prompt' 'expected:' 'remedy:' -- generate "$checkpoint"
refused "an empty prompt" 2 'prompt' 'expected:' -- generate "$checkpoint" --prompt ''
refused "two prompts" 2 'got:      several' -- generate "$checkpoint" --prompt a --prompt-ids 1
refused "a prompt with a character the tokenizer lacks" 2 '--prompt:1:5' 'U+2603' 'expected:' 'remedy:' -- generate "$checkpoint" --prompt 'the ☃'
refused "no model there" 2 'nowhere' 'expected:' 'got:      nothing there' 'remedy:' -- generate nowhere --prompt a
refused "a folder without a model" 2 'expected:' 'got:      a folder without' 'remedy:' -- generate . --prompt a
for ids in 1,x 1,,2 1, , -1 99999999999 100000 1.5 '1 2'; do
  refused "--prompt-ids=$ids" 2 '--prompt-ids' 'expected: numbers from 0 to' 'got:' 'remedy:' -- generate "$checkpoint" "--prompt-ids=$ids" --ids
done
refused "--temperature below 0" 2 '--temperature' -- generate "$checkpoint" --prompt a --temperature=-1
refused "--device of no kind" 2 '--device' 'expected: auto, cpu, cuda, or cuda:N' 'got:      tpu' 'remedy:' -- generate "$checkpoint" --prompt a --device tpu
refused "--precision of a GPU on the CPU" 2 'does not compute in fp16' 'expected:' 'remedy:' -- generate "$checkpoint" --prompt a --device cpu --precision fp16
refused "--top-p 0" 2 '--top-p' -- generate "$checkpoint" --prompt a --top-p 0
for option in --temperature --top-p; do
  refused "$option nan" 2 "command line: $option nan" 'expected: a number' 'got:      `nan`' "remedy:   $option" -- generate "$checkpoint" --prompt a $option nan
done
for option in --length-penalty --no-repeat-ngram --min-tokens --at-once; do
  refused "$option where a text is drawn" 2 "$option does nothing in drawing a text" "command line: $option" 'expected:' 'remedy:' -- generate "$checkpoint" --prompt a $option 1
done
for option in --temperature --top-k --top-p --seed; do
  refused "$option in a beam search" 2 "$option does nothing in a beam search" "command line: $option" 'expected:' 'remedy:' -- generate "$checkpoint" --prompt a --beam 2 $option 1
done
refused "a column of classes where there are no paths" 2 '--class-column' 'remedy:' -- generate "$checkpoint" --prompt a --class-column 3
refused "texts of a text without targets" 2 'has no targets' 'command line: --beam' 'expected: 0' 'got:      2' 'remedy:' -- eval "$checkpoint" --beam 2
refused "a search that is not asked for" 2 '--texts does nothing' 'remedy:   --beam 4' -- eval "$checkpoint" --texts 3
printf 'the\nthe c\n' >prompts.txt
run generate "$checkpoint" --input prompts.txt --temperature 0 --max-tokens 9 --ids
cp "$work/out" "$work/text"
run generate "$checkpoint" --input prompts.txt --beam 1 --max-tokens 9 --ids
report "a beam of 1 goes on from prompts with the likeliest tokens" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 2 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code")"
run generate "$checkpoint" --prompt-ids 1,2,3 --ids --max-tokens 5 --beam 3
report "generate --prompt-ids --ids --beam" "$([ "$code" -eq 0 ] && grep -qxE '([0-9]+ ){5}' "$work/out" || echo "  exit code $code")"
for beam in 0 1; do
  run generate "$checkpoint" --prompt 'the cat the cat the cat the cat the cat' --max-tokens 2 --beam $beam
  holds "beam $beam: a prompt that is longer than the model" 0 '1 prompts lost their beginning: there is room for 16 tokens'
done
refused "--top-k below 0" 2 '--top-k' -- generate "$checkpoint" --prompt a --top-k=-1
cp -r "$checkpoint" broken
echo '{"version": "1.0", "model": {"type": "BPE"}}' >broken/tokenizer.json
refused "a tokenizer of another kind" 2 'tokenizer.json' 'expected:' 'got:' 'remedy:' '--prompt-ids' -- generate broken --prompt a
echo '{"type": "byte"}' >broken/tokenizer.json
refused "a tokenizer with more tokens than the model writes with" 2 'broken/tokenizer.json' 'expected: at most' 'got:      256' 'remedy:' -- generate broken --prompt a
run generate broken --prompt-ids 1 --ids --max-tokens 2
report "ids need no tokenizer" "$([ "$code" -eq 0 ] || echo "  exit code $code")"
sed -i 's/gelu_new/mish/' broken/config.json
refused "an activation that is not there" 2 'broken/config.json: `activation_function`' 'expected: gelu_new' 'got:      `"mish"`' 'remedy:' -- generate broken --prompt-ids 1 --ids
sed -i 's/"gpt2"/"mamba"/' broken/config.json
refused "another kind of model" 2 'broken/config.json: `model_type`' 'expected: gpt2 or llama' 'mamba' 'remedy:' -- generate broken --prompt-ids 1 --ids
cp "$checkpoint/config.json" broken
head -c 1000 "$checkpoint/model.safetensors" >broken/model.safetensors
refused "weights that are cut off" 2 'broken/model.safetensors' 'expected:' 'got:' 'remedy:' -- generate broken --prompt-ids 1 --ids
rm broken/model.safetensors
echo '{"weight_map": {"a": "../model.safetensors"}}' >broken/model.safetensors.index.json
refused "an index that points outside" 2 'index.json' 'expected:' '../model.safetensors' 'remedy:' -- generate broken --prompt-ids 1 --ids
rm -r broken

# --- fine-tuning: a model of another run, as a Hugging Face folder
mkdir hf
for file in config.json model.safetensors tokenizer.json; do cp "$checkpoint/$file" hf; done
for i in $(seq 1 30); do echo "{\"prompt\": \"$i saw\", \"answer\": \" $((i % 3))\"}"; done >asked.jsonl
cat >tune.yaml <<END
device: cpu
model: {init_from: hf}
data: {train: asked.jsonl, fields: [prompt, answer], validation_fraction: 0.2}
training: {batch_size: 2, max_length: 8, max_steps: 4, learning_rate: 0.01, eval_every: 2}
checkpoint: {every: 1}
sample: {length: 4}
END
run train good.yaml --run-name lines data.train=asked.jsonl data.format=lines --max-steps 2 sample.length=0
cp "$(ls -d runs/lines/*/checkpoints/checkpoint-2)"/{config.json,model.safetensors,tokenizer.json} hf
# A prompt begins as the rows of training did: those of records with the start token, windows of a text with none.
run generate lines --prompt '{"p' --max-tokens 3 --temperature 0 --ids
holds "a prompt for a model of records" 0 'prompt 4 tokens'
cp "$work/out" "$work/text"
run export lines exported
run generate exported --prompt '{"p' --max-tokens 3 --temperature 0 --ids
holds "and once it is exported" 0 'prompt 4 tokens'
report "writes the same" "$(cmp "$work/text" "$work/out" 2>&1)"
echo '{"add_bos_token": "yes"}' >exported/tokenizer_config.json
refused "a tokenizer_config.json with a text for a flag" 2 'exported/tokenizer_config.json' 'expected: true or false as `add_bos_token`' 'got:      "yes"' 'remedy:' -- generate exported --prompt '{"p'
rm exported/tokenizer_config.json
run generate exported --prompt '{"p' --max-tokens 3
holds "a folder that does not ask for a start token" 0 'prompt 3 tokens'
rm -r exported
run generate "$checkpoint" --prompt the --max-tokens 3
holds "a prompt for a model of a long text" 0 'prompt 3 tokens'
# Between source and target of a pair stands the end token: a prompt is a source.
run train good.yaml --run-name questions data.train=asked.jsonl 'data.fields=[prompt, answer]' --max-steps 2 sample.length=0
run generate questions --prompt '3 saw' --max-tokens 3 --temperature 0 --ids
holds "a prompt for a model of pairs in one row" 0 'prompt 7 tokens'
cp "$work/out" "$work/text"
report "its checkpoint says so" "$(grep -q '"add_eos_token": true' runs/questions/*/checkpoints/checkpoint-2/tokenizer_config.json || echo "  tokenizer_config.json does not")"
run export questions exported
run generate exported --prompt '3 saw' --max-tokens 3 --temperature 0 --ids
holds "and once it is exported" 0 'prompt 7 tokens'
report "writes the same" "$(cmp "$work/text" "$work/out" 2>&1)"
run export questions questions.gguf --format gguf
holds "GGUF of a model of pairs" 0 'prompts of this model end with token'
rm -r exported questions.gguf
run train good.yaml --run-name joined data.train=asked.jsonl 'data.fields=[prompt, answer]' data.separator=none --max-steps 2 sample.length=0
run generate joined --prompt '3 saw' --max-tokens 3 --temperature 0 --ids
holds "a prompt for a model of pairs with nothing between" 0 'prompt 6 tokens'
# A tokenizer of Hugging Face: what its folder declares counts, and the small files beside it go along.
mkdir chat
{
  printf '{"added_tokens": [{"id": 0, "content": "<|im_start|>"}, {"id": 1, "content": "<|im_end|>"}, {"id": 2, "content": "<|endoftext|>"}],'
  printf '"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},'
  printf '"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, '
  printf '{"type": "Strip", "content": " ", "start": 1, "stop": 0}]},"model": {"type": "BPE", "byte_fallback": true, "merges": [], "vocab": {"▁": 3'
  for b in $(seq 0 255); do printf ', "<0x%02X>": %d' "$b" $((b + 4)); done
  echo '}}}'
} >chat/tokenizer.json
echo '{"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "model_max_length": 99}' >chat/tokenizer_config.json
echo '{"eos_token_id": [2, 1], "top_k": 7}' >chat/generation_config.json
echo '{% for m in messages %}{{ m.content }}{% endfor %}' >chat/chat_template.jinja
run train good.yaml --run-name talk data.tokenizer=chat/tokenizer.json data.train=asked.jsonl 'data.fields=[prompt, answer]' data.separator=none --max-steps 2 sample.length=0
holds "a tokenizer with byte_fallback" 0 'step=2/2'
report "and an end says nothing of none" "$(grep 'trained without one' "$work/err")"
run generate talk --prompt '3 saw' --max-tokens 3 --temperature 0 --ids
holds "a prompt begins with the declared start" 0 'prompt 7 tokens'
cp "$work/out" "$work/text"
run export talk exported
run generate exported --prompt '3 saw' --max-tokens 3 --temperature 0 --ids
holds "and once it is exported" 0 'prompt 7 tokens'
report "writes the same" "$(cmp "$work/text" "$work/out" 2>&1)"
for folder in runs/talk/*/checkpoints/checkpoint-2 exported; do
  report "the declared tokens are in $folder" "$(tr -d ' \n' <$folder/generation_config.json | grep -q '"bos_token_id":0,"eos_token_id":\[1,2\],"top_k":7' || cat $folder/generation_config.json)"
  report "the template is in $folder" "$(cmp chat/chat_template.jinja $folder/chat_template.jinja 2>&1)"
  report "other keys stay in $folder" "$(grep -q '"model_max_length": 99' $folder/tokenizer_config.json || cat $folder/tokenizer_config.json)"
done
report "and in the model's config" "$(tr -d ' \n' <exported/config.json | grep -q '"eos_token_id":\[1,2\]' || cat exported/config.json)"
report "tokenizer.json says what stands before a text" "$(grep -q '"single":\[{"SpecialToken":{"id":"<|im_start|>"' exported/tokenizer.json || echo '  it does not')"
run import exported again
report "what says it already keeps its bytes" "$(for file in tokenizer.json tokenizer_config.json generation_config.json; do cmp exported/$file again/$file 2>&1; done)"
refused "GGUF with byte_fallback" 2 'model.byte_fallback' 'remedy:   --format hf' -- export talk talk.gguf --format gguf
run train good.yaml --run-name other-end data.tokenizer=exported/tokenizer.json model.init_from=exported data.train=asked.jsonl 'data.fields=[prompt, answer]' --max-steps 1 sample.length=0
report "the tokenizer it came with is its own" "$([ "$code" -eq 0 ] || echo "  exit code $code")"
# The token that it writes first is declared as a second end.
end=$(cut -d' ' -f1 "$work/text")
[ "$end" -eq 3 ] && content=▁ || content=$(printf '<0x%02X>' $((end - 4)))
[ "$end" -lt 3 ] || sed -i "s/\"added_tokens\":\[/&{\"id\":$end,\"content\":\"$content\"},/" exported/tokenizer.json
echo "{\"eos_token_id\": [2, $end]}" >exported/generation_config.json
run generate exported --prompt '3 saw' --max-tokens 3 --temperature 0 --ids
report "a text ends at any declared end" "$([ "$code" -eq 0 ] && [ -z "$(tr -d ' \n' <"$work/out")" ] || echo "  exit code $code, or a text that goes on behind $end")"
# With a SentencePiece model beside it, that one counts if no token was added since.
run train good.yaml --run-name pieces data.tokenizer=bpe data.vocab_size=320 --max-steps 1 sample.length=0
pieces=$(ls -d runs/pieces/*/checkpoints/checkpoint-1)
for more in 0 1; do
  rm -rf both both-out
  mkdir both
  cp "$pieces"/{config.json,model.safetensors,tokenizer.model} both
  sed "s/\"added_tokens\": \[/&$(for id in $(seq 260 $((319 - more))); do printf '{"id": %d, "content": "[%d]"}, ' $id $id; done)/" chat/tokenizer.json >both/tokenizer.json
  run import both both-out
  report "a folder with two tokenizers, one of them smaller by $more" "$([ "$code" -eq 0 ] && [ -e both-out/$([ $more = 0 ] && echo tokenizer.model || echo tokenizer.json) ] || echo "  exit code $code, or the other one")"
done
rm -r both both-out
echo '{"eos_token_id": "two"}' >chat/generation_config.json
refused "an end token that is no id" 2 'chat/generation_config.json' 'expected: an id as `eos_token_id`' '"two"' 'remedy:' -- train good.yaml data.tokenizer=chat/tokenizer.json data.train=asked.jsonl 'data.fields=[prompt, answer]'
rm chat/generation_config.json chat/tokenizer_config.json
sed -i 's/<|endoftext|>/[EOS]/' chat/tokenizer.json
run train good.yaml --run-name endless data.tokenizer=chat/tokenizer.json data.train=asked.jsonl 'data.fields=[prompt, answer]' data.separator=none --max-steps 1 sample.length=0
holds "answers without an end are noted" 0 'answers are trained without one'
rm -r chat exported again
run plan tune.yaml --json
whole=$(grep -o '"optimizer state": [0-9]*' "$work/out" | grep -o '[0-9]*$') all=$(grep -o '"parameters": [0-9]*' "$work/out" | grep -o '[0-9]*$')
report "all of a model is tuned unless said" "$([ "$code" -eq 0 ] && grep -q "\"trained_parameters\": $all" "$work/out" || echo "  exit code $code, or not all")"
run plan tune.yaml --json 'model.freeze=[embedding, "layers.*.mlp"]'
frozen=$(grep -o '"optimizer state": [0-9]*' "$work/out" | grep -o '[0-9]*$')
report "what is frozen has no moments" "$([ "$code" -eq 0 ] && [ -n "$whole" ] && [ "$frozen" -lt "$whole" ] || echo "  exit code $code, $frozen and $whole bytes of moments")"
run plan "$repository/configs/finetune.yaml" model.init_from=hf data.train=asked.jsonl training.max_length=8
holds "plan finetune.yaml" 0 'fits         yes'
run train good.yaml runs_folder=others --run-name begun --max-steps 2 data.train=asked.jsonl data.format=lines sample.length=0
run train tune.yaml runs_folder=others model.init_from=begun --run-name tuned
holds "a run to begin with is looked for in runs_folder" 0 'step=4/4'
rm -r others
run train tune.yaml --run-name tuned
holds "a tuned model" 0 'step=4/4'
run train tune.yaml --run-name lora model.lora.rank=2
holds "a model with low-rank additions" 0 'step=4/4'
lora=$(readlink -f runs/latest)
report "its checkpoint is small and no whole model" "$([ ! -e "$lora/checkpoints/checkpoint-4/config.json" ] && [ "$(stat -c %s "$lora/checkpoints/checkpoint-4/adapter_model.safetensors")" -lt "$(stat -c %s hf/model.safetensors)" ] || ls -l "$lora/checkpoints/checkpoint-4")"
run train tune.yaml --run-name lora-in-parts model.lora.rank=2 runtime.stop_after=2
run train --resume lora-in-parts runtime.stop_after=0
parts=$(readlink -f runs/latest)
report "additions go on to the bit" "$(cmp "$lora/checkpoints/checkpoint-4/adapter_model.safetensors" "$parts/checkpoints/checkpoint-4/adapter_model.safetensors" 2>&1)"
run eval lora --json
tuned_loss=$(grep -o '"eval/loss": [0-9.]*' "$work/out")
run export lora merged
holds "additions are merged" 0 'merged: '
run train tune.yaml --run-name again model.init_from=merged training.learning_rate=1e-12 --max-steps 1
run eval again --json
report "and are worth the same then" "$([ -n "$tuned_loss" ] && [ "${tuned_loss:0:18}" = "$(grep -o '"eval/loss": [0-9.]*' "$work/out" | cut -c1-18)" ] || echo "  $tuned_loss, merged $(cat "$work/out")")"
run generate lora --prompt '7 saw' --max-tokens 3
holds "it writes" 0 'generated 3 tokens'
run export tuned tuned.gguf --format gguf --dtype f16
report "GGUF begins as it should" "$([ "$code" -eq 0 ] && [ "$(head -c 4 tuned.gguf)" = GGUF ] || echo "  exit code $code")"
run import hf imported
report "what is imported is what was there" "$([ "$code" -eq 0 ] && cmp hf/tokenizer.json imported/tokenizer.json 2>&1 && cmp hf/model.safetensors imported/model.safetensors 2>&1 || echo "  exit code $code")"
run export tuned slash/
report "a folder with a slash behind it" "$([ "$code" -eq 0 ] && [ -s slash/config.json ] || echo "  exit code $code")"
mkdir empty
run export tuned empty
report "an empty folder is a place" "$([ "$code" -eq 0 ] && [ -s empty/config.json ] || echo "  exit code $code")"
run export tuned by-name.gguf
report "a name that ends in .gguf is of a GGUF file" "$([ "$code" -eq 0 ] && [ "$(head -c 4 by-name.gguf)" = GGUF ] || echo "  exit code $code")"
rm -r slash empty by-name.gguf
cp -r "$lora/checkpoints/checkpoint-4" additions
rm additions/manifest.json
run export additions added
holds "additions of another program" 0 'added: '
rm -r added
sed -i 's/"bias": "none"/"bias": "none", "lora_bias": true/' additions/adapter_config.json
refused "additions of a kind that is not there" 2 'adapter_config.json: `lora_bias`' 'expected: false' 'got:      `true`' 'remedy:' -- export additions added
cp "$lora/checkpoints/checkpoint-4/adapter_config.json" additions
LC_ALL=C sed -i 's/0\.mlp\.c_fc\.lora/0.mlp.c_fx.lora/g' additions/adapter_model.safetensors
refused "additions to nothing" 2 'h.0.mlp.c_fx.lora_' 'additions/adapter_model.safetensors' 'expected: lora_A and lora_B of linear layers' 'got:' 'remedy:' -- export additions added
rm -r additions
refused "the folder that finetune.yaml names" 2 'no model at `gpt2`' 'finetune.yaml' 'expected: a Hugging Face folder' 'got:      nothing there' 'nothing is downloaded' -- train "$repository/configs/finetune.yaml" data.train=asked.jsonl
refused "a place that is taken" 2 'is there already' 'remedy:' -- export tuned imported
refused "a place in no folder" 2 'expected: a folder' 'remedy:' -- export tuned nowhere/model
refused "a model that is not there" 2 'nowhere' 'expected: a Hugging Face folder' 'remedy:' -- import nowhere out
refused "GGUF of another shape" 2 'no GGUF form' 'expected: a GPT-2 shape' 'remedy:   --format hf' -- export "$(ls -d runs/bytes/*)" other.gguf --format gguf
refused "weights that are nowhere" 2 'model.init_from=nowhere' 'expected: a Hugging Face folder' 'got:' 'remedy:' -- train tune.yaml model.init_from=nowhere
refused "a folder without a model" 2 'model.init_from=runs' 'expected: config.json' 'remedy:' -- train tune.yaml model.init_from=runs
refused "sizes that are not the weights'" 2 'tensor transformer.wte.weight' 'expected:' 'got:' 'remedy:' -- train tune.yaml model.d_model=16
refused "another family than the weights'" 2 'model.type=seq2seq' 'expected: `gpt`' 'remedy:' -- train tune.yaml model.type=seq2seq
refused "another tokenizer than the weights'" 2 'data.tokenizer=byte' 'expected:' 'hf/tokenizer.json' 'got:      byte' 'remedy:' -- train tune.yaml data.tokenizer=byte
refused "texts longer than the model" 2 'training.max_length=4096' 'expected: at most' 'remedy:' -- train tune.yaml training.max_length=4096
refused "a pattern of nothing" 2 'model.freeze' 'expected:' 'layers.*.attention.qkv.weight' 'got:      atention' 'remedy:' -- train tune.yaml 'model.freeze=[atention]'
refused "nothing left to train" 2 'nothing is left to train' 'expected:' 'remedy:' -- train tune.yaml 'model.freeze=["*"]'
refused "additions to a layer that is none" 2 'model.lora.targets' 'expected:' 'got:      embedding' 'remedy:' -- train tune.yaml model.lora.rank=2 'model.lora.targets=[embedding]'
refused "additions to new weights" 2 'model.lora.rank' 'expected: model.init_from' 'remedy:' -- train good.yaml model.lora.rank=2
echo '["no", "object"]' >list.jsonl
cat asked.jsonl list.jsonl >last.jsonl
refused "a line that is no object" 2 'last.jsonl:31' 'expected: `{`' 'remedy:' -- train tune.yaml data.train=last.jsonl
cp -r hf broken
head -c 1000 hf/model.safetensors >broken/model.safetensors
refused "weights to tune that are cut off" 2 'broken/model.safetensors' 'expected:' 'got:' 'remedy:' -- train tune.yaml model.init_from=broken
rm broken/model.safetensors
cp hf/model.safetensors broken/a.safetensors
cp hf/model.safetensors broken/b.safetensors
echo '{"weight_map": {"transformer.wte.weight": "a.safetensors", "transformer.wpe.weight": "b.safetensors"}}' >broken/model.safetensors.index.json
refused "a tensor in two shards" 2 'broken/model.safetensors.index.json: tensor `transformer.' 'expected: each tensor in one file' '`a.safetensors`' '`b.safetensors`' 'remedy:' -- train tune.yaml model.init_from=broken
echo '{"weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}' >broken/model.safetensors.index.json
refused "a shard that is missing" 2 'broken/model-00001-of-00002.safetensors' 'expected:' 'index.json' 'got:      nothing there' 'remedy:' -- train tune.yaml model.init_from=broken
rm -r broken
cp -r hf broken
# The last number of the file is not one.
printf '\x00\x00\xc0\x7f' | dd of=broken/model.safetensors bs=1 seek=$(($(stat -c %s hf/model.safetensors) - 4)) conv=notrunc status=none
for how in 'train tune.yaml model.init_from=broken' 'import broken out' 'generate broken --prompt-ids 1 --ids'; do
  refused "weights that are not finite: $how" 2 'not finite' 'broken/model.safetensors: tensor `' 'element [' 'expected: finite numbers' 'got:      nan' 'remedy:' -- $how
done
LC_ALL=C sed '0,/"F32"/s//"I32"/' hf/model.safetensors >broken/model.safetensors
for how in 'train tune.yaml model.init_from=broken' 'plan tune.yaml model.init_from=broken' 'import broken out' 'generate broken --prompt-ids 1 --ids'; do
  refused "weights that are integers: $how" 2 'broken/model.safetensors: tensor `' 'expected: F32, F16, BF16 or F64' 'got:      I32' 'remedy:' -- $how
done
LC_ALL=C sed 's/h\.0\.mlp\.c_fc\.bias/h.0.mlp.c_fx.bias/' hf/model.safetensors >broken/model.safetensors
refused "a tensor that is missing" 2 'tensor transformer.h.0.mlp.c_fc.bias is missing' 'expected: `transformer.h.0.mlp.c_fc.bias` or `h.0' 'got:      none of that name' 'remedy:' -- train tune.yaml model.init_from=broken
cp hf/model.safetensors broken
sed -i 's/"n_layer": [0-9]*/"n_layer": 1/' broken/config.json
run import broken shorter
holds "what the model has no place for is said" 0 'note     12 tensors of broken left out' 'transformer.h.1.' ', ...'
rm -r shorter
cp hf/config.json broken
echo '{"version":' >broken/tokenizer.json
refused "half a tokenizer" 2 'broken/tokenizer.json' 'expected: JSON' 'got:' 'fetch the file again' -- train tune.yaml model.init_from=broken
cp hf/tokenizer.json broken
sed -i 's/"gpt2"/"mamba"/' broken/config.json
refused "an architecture that is not there" 2 'broken/config.json: `model_type`' 'expected: gpt2 or llama' 'mamba' 'remedy:' -- train tune.yaml model.init_from=broken
cp hf/config.json broken
sed -i 's/"n_inner": [0-9]*/"n_inner": 24/' broken/config.json
refused "a tensor of another shape" 2 'transformer.h.0.mlp.c_fc.weight' 'broken' 'expected: [' ',24]' 'got:      [' 'remedy:' -- train tune.yaml model.init_from=broken
sed -i 's/"vocab_size": [0-9]*/"vocab_size": 5/' broken/config.json
refused "a tokenizer with more tokens than the weights" 2 'broken/tokenizer.json' 'expected: at most 5 tokens' 'got:' 'remedy:' -- train tune.yaml model.init_from=broken
rm broken/tokenizer.json
refused "no tokenizer" 2 'has no tokenizer' 'expected: tokenizer.json' 'remedy:' -- train tune.yaml model.init_from=broken
rm -r broken
rm -r hf
run train --resume lora training.max_steps=5
holds "additions whose model is gone" 2 'expected: a Hugging Face folder' 'remedy:'

# --- pairs: a model that reads source and target apart
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
  echo "one two $i" >>pairs.source
  echo "$i three" >>pairs.target
done
printf 'run_name: pairs\nmodel: {type: seq2seq, d_model: 16, num_layers: 1, num_heads: 2}\ntraining: {batch_size: 4, max_length: 12, max_steps: 2}\ndata: {train: pairs.source, train_target: pairs.target, format: lines}\n' >pairs.yaml
run train pairs.yaml
report "a run on pairs" "$([ "$code" -eq 0 ] && grep -q 'pairs' "$work/err" || echo "  exit code $code")"
pairs=runs/latest
run generate "$pairs" --input pairs.source
report "generate --input" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 12 ] && grep -q '12 texts' "$work/err" || echo "  exit code $code, $(wc -l <"$work/out") lines")"
cp "$work/out" "$work/text"
run generate "$pairs" --input pairs.source --at-once 5
report "the size of a batch changes no text" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code")"
run generate "$pairs" --prompt 'one two 3' --beam 0 --temperature 0 --max-tokens 4 --ids
report "generate --beam 0 draws" "$([ "$code" -eq 0 ] && grep -qE '^([0-9]+ ){1,4}$' "$work/out" || echo "  exit code $code")"
for beam in 0 1; do
  run generate "$pairs" --prompt 'one two three one two three' --max-tokens 2 --beam $beam
  holds "beam $beam: a source that is longer than the model's" 0 '1 sources lost what is behind token 12'
  run generate "$pairs" --prompt 'one two 3' --max-tokens 0 --beam $beam --ids
  report "beam $beam: no tokens" "$([ "$code" -eq 0 ] && [ "$(cat "$work/out")" = '' ] || echo "  exit code $code, or some text")"
done
refused "more tokens before the end than there may be" 2 'so many tokens before it may end' 'command line: --min-tokens' 'expected: 0 to 10' 'got:      50' 'remedy:   --min-tokens 10' -- generate "$pairs" --prompt one --min-tokens 50 --max-tokens 10
refused "more tokens before the end than the model writes" 2 'command line: --min-tokens' 'expected: 0 to 12' 'got:      1000000' 'remedy:' -- generate "$pairs" --prompt one --min-tokens 1000000
refused "eval: more tokens before the end than the model writes" 2 'command line: --min-tokens' 'expected: 0 to 12' 'got:      13' 'remedy:' -- eval "$pairs" --min-tokens 13
for command in "generate $pairs --prompt one" "eval $pairs"; do
  for value in nan inf -1 11; do
    # shellcheck disable=SC2086 # several words
    refused "${command%% *}: --length-penalty=$value" 2 'command line: --length-penalty' 'expected: a number, 0 to 10' "got:      \`$value\`" 'remedy:' -- $command --length-penalty=$value
  done
done
refused "training: more tokens before the end than there may be" 2 'training.eval_min_tokens' 'expected: 0 to 12' 'got:      13' 'remedy:   training.eval_min_tokens=12' -- train pairs.yaml training.eval_texts=2 training.eval_min_tokens=13
refused "eval: the search of its own config" 2 'training.eval_min_tokens' 'expected: 0 to 12' 'got:      13' 'remedy:   --min-tokens 12' -- eval "$pairs" training.eval_min_tokens=13
run eval "$pairs" --json
report "eval of pairs" "$([ "$code" -eq 0 ] && is_json "$work/out" && grep -q '"eval/bleu": ' "$work/out" && grep -q '"eval/rougeL": ' "$work/out" || echo "  exit code $code, or no BLEU")"
# Overrides are checked against the run's own config, whatever model the quickstart has.
run eval pairs training.eval_texts=2
holds "eval with a key of the run's own model" 0 'eval/loss'
run train --resume pairs training.eval_texts=2 training.max_steps=3
holds "--resume with a key of the run's own model" 0 'changed  training.eval_texts: 0 -> 2' 'step=3/3'
run train --resume pairs model.norm_position=post
holds "--resume with another value of such a key" 2 'a run cannot go on with another `model.norm_position`' 'expected: pre' 'remedy:'
run train --resume pairs model.norm_positon=post
holds "--resume with a key that the run's model has not" 2 'did you mean `model.norm_position`' 'remedy:'
# Named fields: the source of each record, of one line or of several.
printf 'q,a\none two,three\n"four\nfive",six\nseven eight,nine\n' >table.csv
printf '{"q": "one two", "a": "three"}\n{"q": "four\\nfive", "a": "six"}\n{"q": "seven eight", "a": "nine"}\n' >table.jsonl
table=(data.train=table.csv data.train_target=[] data.format=auto 'data.fields=[q, a]' data.validation=table.csv data.tokenizer=byte training.batch_size=2)
run train pairs.yaml --run-name table "${table[@]}"
run generate table --input table.csv
report "generate --input of a table: a line for each record" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 3 ] || echo "  exit code $code, $(wc -l <"$work/out") lines")"
cp "$work/out" "$work/text"
gzip -k table.csv
for input in table.jsonl table.csv.gz; do
  run generate table --input "$input"
  report "the same of $input" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code")"
done
printf 'one two\n' >first.txt
run generate table --input first.txt
report "and of a plain line" "$([ "$code" -eq 0 ] && cmp <(head -1 "$work/text") "$work/out" 2>&1 || echo "  exit code $code")"
sed 's/^q,a/other,source/' table.csv >other.csv
refused "a table without the run's field" 2 'no column is called `q`' 'other.csv:1' 'expected: a column for each of --field: q' 'got:      other, source' 'remedy:   set --field to' -- generate table --input other.csv
refused "JSON lines without the field" 2 'a field is missing' 'table.jsonl:1' '`b`' 'remedy:' '--field NAME' -- generate table --input table.jsonl --field b
run generate table --input other.csv --field other
report "generate --field" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code")"
refused "a field of plain lines" 2 'no named fields' 'first.txt' 'remedy:   leave --field out' -- generate table --input first.txt --field q
refused "a field of a prompt" 2 '--field q' 'remedy:   leave --field out' -- generate table --prompt one --field q
rm table.csv table.csv.gz table.jsonl other.csv first.txt
run train pairs.yaml --run-name texts training.eval_texts=2 training.eval_every=1 checkpoint.metric=eval/chrf
holds "validation writes texts" 0 '  BLEU ' '  chrF ' '  ROUGE-1/2/L ' 'eval_texts ' 'best         eval/chrf '
report "their metrics are in the files" "$([ "$(grep -c '"eval/rougeL":' runs/latest/metrics.jsonl)" -eq 2 ] && grep -q 'eval/bleu=' runs/latest/train.log && grep -q 'eval/chrf' runs/latest/tb/* && grep -q '"eval/chrf"' runs/latest/checkpoints/*/manifest.json || echo "  missing in metrics.jsonl, train.log, tb/ or a manifest")"
refused "a metric of texts without texts" 2 'writes no texts' 'checkpoint.metric=eval/rouge2' 'expected: training.eval_texts' 'got:      0' 'remedy:   training.eval_texts=' -- train pairs.yaml checkpoint.metric=eval/rouge2
refused "texts of a model without targets" 2 'has no targets' 'training.eval_texts=5' 'expected: 0' 'got:      5' 'remedy:' -- train good.yaml training.eval_texts=5
echo 'one two qwertz' >other.source
echo 'zyxwv three' >other.target
run train pairs.yaml --run-name words data.tokenizer=word data.validation=pairs.source data.validation_target=pairs.target
run eval runs/latest data.validation=other.source data.validation_target=other.target
holds "eval on other data, with rare words of its own" 0 'eval/loss ' 'eval/bleu '
cp "$work/out" "$work/text"
run eval runs/latest --split test data.test=other.source data.test_target=other.target
holds "eval on test data" 0 'split    test' 'eval/loss ' 'eval/bleu '
report "which gives what the same pairs give as validation data" "$(cmp "$work/text" "$work/out" 2>&1)"
mv pairs.source away.source
for split in validation test; do
  run eval runs/latest --split $split data.$split=other.source data.${split}_target=other.target
  report "and without the files of training ($split)" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || cat "$work/err")"
done
mv away.source pairs.source
refused "eval on sources alone" 2 'data.validation_target' 'expected: a file' 'remedy:' -- eval words data.validation=other.source data.validation_target=[]
refused "eval with another tokenizer than the model's" 2 'another vocabulary' 'data.tokenizer=byte' 'remedy:   leave data.tokenizer out' -- eval words data.tokenizer=byte model.vocab_size=auto
run eval runs/latest
report "and not what other pairs give" "$(cmp -s "$work/text" "$work/out" && echo "  the same metrics")"
# Texts are measured against those of the files, as `score` does it, not against what the tokenizer makes of them.
for i in 1 2 3 4 5 6; do echo "$i, Three (THREE)!" >>loud.target; done
head -6 pairs.source >loud.source
run train pairs.yaml --run-name loud data.tokenizer=word data.lower_case=true data.min_frequency=1 data.train=loud.source data.train_target=loud.target data.validation=loud.source data.validation_target=loud.target training.max_steps=60 training.learning_rate=0.02
run eval runs/latest
sed -n 's/^eval\/\(bleu\|chrf\|rouge1\) *//p' "$work/out" | awk '{printf "%.2f\n", $1}' >"$work/of-eval"
run generate runs/latest --input loud.source
cp "$work/out" loud.texts
run score loud.texts loud.target
sed -n 's/^\(bleu\|chrf\|rouge1\) *//p' "$work/out" | awk '{printf "%.2f\n", $1}' >"$work/of-score"
report "eval measures what score does" "$(grep -qv '^0.00' "$work/of-eval" || echo '  nothing is right'; diff "$work/of-eval" "$work/of-score")"
refused "eval on test data that is not there" 2 'no test data' '`data.test`' 'expected: files in data.test' 'got:      neither' 'remedy:   data.test=FILE' -- eval "$pairs" --split test
refused "eval on a split of no name" 2 'command line: --split tset' 'expected: one of validation, test' 'did you mean `test`?' -- eval "$pairs" --split tset
run train pairs.yaml --run-name long training.max_length=4096 training.max_source_length=12 training.max_steps=1
refused "eval: more texts at once than memory" 3 'does not fit' '65,536 sources at once, 9 hypotheses' 'expected: at most' 'got:' 'remedy:   a smaller --at-once, or a smaller --beam' -- eval long --at-once 65536 --beam 9
run train pairs.yaml --run-name drawn data.test_fraction=0.4 data.validation_fraction=0.2 training.max_eval_batches=1 training.batch_size=1
run eval drawn --split test --json
report "eval on records drawn for a test" "$([ "$code" -eq 0 ] && is_json "$work/out" && grep -q '"split": "test"' "$work/out" && grep -q '"eval/bleu": ' "$work/out" || echo "  exit code $code")"
test_loss=$(field 'eval.loss' "$work/out")
run eval drawn --split test --json training.max_eval_batches=0
report "which are all read, however few batches validation has" "$([ "$(field 'eval.loss' "$work/out")" = "$test_loss" ] || echo "  $test_loss, of all $(field 'eval.loss' "$work/out")")"
refused "eval: a beam wider than the vocabulary" 2 'wider than the vocabulary' 'command line: --beam' 'expected: at most' 'got:      1000' 'remedy:' -- eval "$pairs" --beam 1000
refused "training: a beam wider than the vocabulary" 2 'wider than the vocabulary' 'training.eval_beam' 'expected: at most' 'got:      64' 'remedy:   training.eval_beam=4' -- train pairs.yaml training.eval_texts=2 training.eval_beam=64
refused "a beam wider than the vocabulary" 2 'wider than the vocabulary' 'expected: at most' 'got:      1000' 'remedy:' -- generate "$pairs" --prompt one --beam 1000
refused "an input that is not there" 2 'nowhere.txt' 'expected:' 'remedy:' -- generate "$pairs" --input nowhere.txt
refused "a model of pairs without targets" 2 'reads pairs of source and target' '`data.train`' 'expected: data.train_target' 'remedy:' -- train pairs.yaml data.train_target=[]
refused "a replay of updates that are several batches" 2 'training.steps_per_replay' 'got:      4 updates of 2 batches' 'remedy:' -- train pairs.yaml training.steps_per_replay=4 training.grad_accum=2
refused "factors that do not make the batch" 2 'training.effective_batch' 'expected: batch_size 4 x grad_accum 1 = 4' 'got:      16' 'remedy:' -- train pairs.yaml effective_batch=16

refused "a head for no key/value head" 2 'model.num_heads 2 is not divisible by model.num_kv_heads 3' 'expected:' 'remedy:' -- train pairs.yaml model.num_kv_heads=3
sed 's/num_layers: 1/num_layers: 1, max_target_len: 9/' pairs.yaml >limits.yaml
refused "two limits of a target" 2 '`training.max_length` is given twice' 'limits.yaml:3' 'the first at limits.yaml:2' 'remedy:' -- train limits.yaml

# Pairs with one side: bad records.
printf 'one\n\nthree\nfour\n' >half.source
printf 'a\nb\nc\nd\n' >half.target
printf 'q,a\none,1\n"two\nlines", \nthree,3\n' >half.csv
half=(data.train=half.source data.train_target=half.target)
refused "a pair without a source" 2 'a pair without a source' 'half.source:2' 'expected: text on both sides' 'got:      an empty line' 'data.on_bad_record=skip' -- train pairs.yaml "${half[@]}"
refused "a pair without a target" 2 'a pair without a target' 'half.source:2' 'remedy:' -- train pairs.yaml data.train=half.target data.train_target=half.source
refused "a pair with an empty field" 2 'a pair without a target' 'half.csv:4' 'an empty field `a`' 'data.on_bad_record=skip' -- train pairs.yaml data.train=half.csv data.train_target=[] data.format=csv 'data.fields=[q, a]'
run data stats pairs.yaml "${half[@]}" data.on_bad_record=skip data.validation_fraction=0.01
holds "pairs with one side passed over" 0 '1 bad records were passed over' 'half.source:2' '3 training, 0 validation, 0 test; 0 empty, 1 bad'
refused "a field that the file lacks" 2 'no column is called `text`' 'half.csv:1' 'got:      q, a' 'remedy:' -- train pairs.yaml data.train=half.csv data.train_target=[] data.format=csv 'data.fields=[q, text]'

refused "a source that is the target" 2 'data.fields=[q, q]' 'expected: two fields' 'got:      q, q' 'remedy:' -- train pairs.yaml data.train=half.csv data.train_target=[] data.format=csv 'data.fields=[q, q]'
printf 'q,a,a\none,1,2\n' >twice.csv
refused "a column that is there twice" 2 'two columns are called `a`' 'twice.csv:1' 'got:      columns 2 and 3 of q, a, a' 'remedy:' -- train pairs.yaml data.train=twice.csv data.train_target=[] data.format=csv 'data.fields=[q, a]'
printf 'q,a\n' >header.csv
csv=(data.train_target=[] data.format=csv 'data.fields=[q, a]' data.on_bad_record=skip)
refused "a header and no record" 2 'nothing to read in header.csv' 'data.train=header.csv' 'expected: at least one record' 'got:      none' 'remedy:' -- train pairs.yaml "${csv[@]}" data.train=header.csv data.tokenizer=word
refused "the same to validate on" 2 'nothing to read in header.csv' 'data.validation=header.csv' 'remedy:   leave it out of data.validation' -- train pairs.yaml "${csv[@]}" data.train=half.csv data.validation=header.csv
refused "the same to test on" 2 'nothing to read in header.csv' 'data.test=header.csv' 'remedy:' -- train pairs.yaml "${csv[@]}" data.train=half.csv data.test=header.csv
printf 'a\nb\nc\n\xe9\n' >half.target
printf 'one\ntwo\nthree\nfour\n' >half.source
refused "a bad character in the second of two files" 2 'not UTF-8' 'half.target:4:1 (byte 6)' 'got:      bytes E9' 'data.on_bad_record=skip' -- train pairs.yaml "${half[@]}"
refused "and in what a model is to go on with" 2 'not UTF-8' 'half.target:4:1 (byte 6)' 'remedy:' -- generate loud --input half.target

# Pairs that are too long: cut with a count, or refused.
run train pairs.yaml training.max_length=8 training.max_source_length=10
holds "pairs that are too long" 0 'cut      ' ' sources to their first 10 tokens (the longest has 11), ' ' targets to their first 8 tokens (the longest has 9)'
refused "a source that is too long" 2 'a source is longer than training.max_source_length' 'pairs.source:10' 'expected: at most 10 tokens' 'got:      11 tokens; 3 of ' 'training.max_source_length=11, or data.on_long_record=cut' -- train pairs.yaml training.max_source_length=10 data.on_long_record=error data.validation_fraction=0.01
refused "a target that is too long" 2 'a target is longer than training.max_length' 'pairs.target:1' 'got:      8 tokens; ' 'training.max_length=9, or' -- train pairs.yaml training.max_length=7 training.max_source_length=12 data.on_long_record=error
refused "a record that is too long" 2 'a record is longer than training.max_length' 'pairs.source:1' 'got:' 'remedy:' -- train good.yaml data.train=pairs.source data.format=lines training.max_length=5 data.on_long_record=error
run train pairs.yaml data.on_long_record=error
holds "none is too long" 0 'step=2/2'

# Short pairs first. Sittings of one update give the same bits, across the ends of stages.
grows=(training.max_steps=5 'training.length_curriculum=[[2, 4, 3], [3, 8, 3]]' training.grad_accum=2 model.dropout=0.1)
run train pairs.yaml --run-name grows "${grows[@]}"
holds "a length curriculum" 0 'lengths  4 + 3 tokens up to update 2, 8 + 3 tokens up to update 3, then 12 + 12'
whole=$(readlink -f runs/latest)
run train pairs.yaml --run-name grows-2 "${grows[@]}" runtime.stop_after=1
for _ in 2 3 4; do run train --resume grows-2; done
holds "a length curriculum goes on" 75 'to the bit' 'stopped after 4 updates'
run train --resume grows-2 runtime.stop_after=0
report "to the same weights" "$(cmp "$whole/checkpoints/checkpoint-5/model.safetensors" runs/latest/checkpoints/checkpoint-5/model.safetensors 2>&1)"
run train pairs.yaml --run-name grows-not "${grows[@]}" training.length_curriculum=[]
report "a length curriculum makes a difference" "$([ "$code" -eq 0 ] && ! cmp -s "$whole/checkpoints/checkpoint-5/model.safetensors" runs/latest/checkpoints/checkpoint-5/model.safetensors || echo "  exit code $code, or the same weights")"
run train pairs.yaml --run-name grows --resume "${grows[@]}" 'training.length_curriculum=[[2, 4, 4]]'
holds "another curriculum" 2 'a run cannot go on with another `training.length_curriculum`' '[[2, 4, 3], [3, 8, 3]]'
for stages in '[[2, 4]]:three numbers' '[[2, 4, 3], [2, 5, 3]]:before it begins' '[[2, 4, 3], [3, 3, 3]]:from short to long' '[[2, 13, 3]]:longer than the full' '[[0, 4, 3]]:at least 1' '[2, 4, 3]:list of lists'; do
  refused "length_curriculum ${stages%:*}" 2 'training.length_curriculum' "${stages##*:}" 'expected:' 'got:' 'remedy:' -- train pairs.yaml "training.length_curriculum=${stages%:*}"
done
refused "a curriculum without pairs" 2 'gpt has no sources' 'training.length_curriculum' 'remedy:' -- train good.yaml 'training.length_curriculum=[[2, 4, 3]]'

# --- score
printf 'the cat sat on the mat\nrunning dogs\n' >hypotheses.txt
printf 'the cat sat on a mat\nruns, dog!\n' >references.txt
run score hypotheses.txt references.txt
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"$'\n'
[ "$(cut -c 1-10 "$work/out" | xargs)" = 'bleu chrf rouge1 rouge2 rougeL' ] || problem+="  not a line for each metric"$'\n'
grep -qxE 'rouge1     41\.6667' "$work/out" || problem+="  another ROUGE-1"$'\n'
grep -qF '2 lines' "$work/err" || problem+="  no count of lines"$'\n'
report "score" "$problem"
run score hypotheses.txt references.txt --json --stem
report "score --json --stem" "$([ "$code" -eq 0 ] && is_json "$work/out" && [ "$(field lines "$work/out")" = 2 ] && [[ $(field rouge1 "$work/out") = 91.66* ]] && [ -n "$(field rougeL_recall "$work/out")" ] || echo "  exit code $code, or other figures")"
run score --metric chrf,rouge2 hypotheses.txt references.txt --metric bleu
report "score --metric" "$([ "$code" -eq 0 ] && [ "$(cut -d ' ' -f 1 "$work/out" | xargs)" = 'bleu chrf rouge2' ] || echo "  exit code $code, or other metrics")"
run score hypotheses.txt references.txt --per-line
problem=
[ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 2 ] || problem+="  exit code $code, or not two lines"$'\n'
while read -r line; do
  is_json <(echo "$line") || problem+="  not JSON: $line"$'\n'
done <"$work/out"
report "score --per-line" "$problem"
unwritten score hypotheses.txt references.txt --per-line
: >no-lines.txt
head -1 references.txt >one-line.txt
refused "score without a file" 2 'nowhere.txt' 'REFERENCES' 'expected:' 'got:      nothing there' 'remedy:' -- score hypotheses.txt nowhere.txt
refused "score of a folder" 2 'HYPOTHESES' 'expected:' 'got:      something that is not a file' 'remedy:' -- score . references.txt
refused "score of different numbers of lines" 2 'hypotheses.txt and one-line.txt' 'expected:' 'got:      2 hypotheses, 1 references' 'remedy:' -- score hypotheses.txt one-line.txt
refused "score of a file without lines" 2 'got:      0 hypotheses, 2 references' 'remedy:' -- score no-lines.txt references.txt
refused "score of nothing" 2 'nothing to score' 'expected:' 'got:      two empty files' 'remedy:' -- score no-lines.txt no-lines.txt
refused "unknown metric" 2 '--metric' '`blue`' 'expected: bleu, chrf, rouge1, rouge2, rougeL' 'did you mean `--metric bleu`' -- score hypotheses.txt references.txt --metric blue
refused "score with one file" 2 'REFERENCES is missing' 'expected: a file with what each' 'remedy:' -- score hypotheses.txt
refused "score --per-line --json" 2 '--json' 'expected: one of the two' 'remedy:   leave one of them out' -- score hypotheses.txt references.txt --per-line --json

# --- stopping
"$binary" train good.yaml training.max_steps=1000000 training.eval_every=1000000 --run-name stopped >"$work/out" 2>"$work/err" </dev/null &
child=$!
for _ in $(seq 300); do
  grep -qs '"type":"train"' runs/stopped/*/metrics.jsonl && break
  sleep 0.1
done
kill -TERM "$child"
wait "$child"
code=$?
child=
problem=
[ "$code" -eq 75 ] || problem+="  exit code $code, expected 75"$'\n'
run_folder=$(echo runs/stopped/*)
[ "$(field status "$run_folder/run.json")" = stopped ] || problem+="  status $(field status "$run_folder/run.json")"$'\n'
steps=$(field step "$run_folder/run.json")
for file in model.safetensors config.json tokenizer.json; do
  [ -s "$run_folder/checkpoints/checkpoint-$steps/$file" ] || problem+="  no checkpoint-$steps/$file"$'\n'
done
report "SIGTERM" "$problem"

# --- going on with a run
# flip FILE: one bit in the middle.
flip() {
  local at=$(($(stat -c %s "$1") / 2)) byte
  byte=$(od -An -tu1 -j "$at" -N1 "$1")
  printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}
# fresh NAME [OVERRIDE...]: a run of three updates with three checkpoints; its folder in $run_folder.
fresh() {
  local name=$1
  shift
  run train good.yaml --run-name "$name" checkpoint.every=1 checkpoint.keep_last=3 "$@"
  run_folder=$(readlink -f runs/latest)
}
same=(checkpoint.every=1 checkpoint.keep_last=3)
fresh go
for what in '' go "$run_folder" "$run_folder/" runs/latest "$run_folder/checkpoints/checkpoint-3" "$run_folder/checkpoints/checkpoint-3/"; do
  run train good.yaml --run-name go --resume $what "${same[@]}" # unquoted: none is no argument
  holds "--resume $what of a finished run" 0 'checkpoint-3 (3 updates done, to the bit)' 'the run has done its 3 updates'
  report "--resume $what leaves run.json alone" "$([ "$(field status "$run_folder/run.json")" = done ] && [ "$(field validation_loss "$run_folder/run.json")" != null ] || cat "$run_folder/run.json")"
  report "--resume $what makes no run" "$([ "$(ls runs/go | wc -l)" -eq 1 ] || ls runs/go)"
done
# Were it not found, the built-in quickstart would begin: that must not take long to fail here.
run train --resume runtime.stop_after=1
holds "--resume without a config: the latest" 0 "go/$(basename "$run_folder")/checkpoints/checkpoint-3 (3 updates done"
run train --resume training.max_steps=4 training.learning_rate=2e-3 --run-name go
holds "--resume with changes" 0 'changed  training.max_steps: 3 -> 4' 'changed  training.learning_rate: 0.001 -> 0.002' 'step=4/4'
report "auto is what it was" "$(grep 'changed  training.precision' "$work/err")"
report "more steps in the same run" "$([ "$(field step "$run_folder/run.json")" = 4 ] && [ "$(field status "$run_folder/run.json")" = "done" ] || cat "$run_folder/run.json")"
before=$(find "$run_folder/checkpoints" -printf '%p %s %T@\n')
for change in model.d_model=64:32 data.tokenizer=byte:char seed=9:1 training.optimizer=sgd:adamw training.max_length=8:16; do
  key=${change%%=*} was=${change##*:} is=${change#*=}
  run train good.yaml --run-name go --resume "$key=${is%:*}" training.max_steps=4
  holds "--resume with another $key" 2 "a run cannot go on with another \`$key\`" "$key=${is%:*}" "expected: $was, as the run began" "got:      ${is%:*}" 'remedy:'
done
report "a refused resume leaves the checkpoints alone" "$([ "$before" = "$(find "$run_folder/checkpoints" -printf '%p %s %T@\n')" ] || echo '  it changed them')"
mkdir -p no-run
refused "--resume of nowhere" 2 'no run at `nowhere`' 'expected: a run folder' 'got:      nothing there' 'remedy:' -- train good.yaml --resume nowhere
refused "--resume of a folder that is no run" 2 'no run at `no-run`' 'a folder without run.json' 'remedy:' -- train good.yaml --resume no-run
refused "--resume of a path without a run" 2 'no run at' 'expected:' 'got:' 'remedy:' -- train --resume runs/nowhere/checkpoints/checkpoint-1
refused "--resume where nothing was trained yet" 2 'no run at `latest`' 'nothing-yet' 'remedy:' -- train --resume runs_folder=nothing-yet
refused "two values for --resume" 2 -- train good.yaml --resume go other
run train good.yaml --run-name first-of-its-name --resume
holds "--resume before the first run" 0 'no run called first-of-its-name yet'

fresh fork
before=$(find "$run_folder" -type f ! -name lock -printf '%p %s %T@\n' | sort)
run train good.yaml --run-name fork --resume "$run_folder/checkpoints/checkpoint-1" "${same[@]}"
holds "--resume of an older checkpoint" 0 'checkpoint-1 (1 updates done, to the bit)' 'step=3/3'
other=$(readlink -f runs/latest)
problem=
[ "$other" != "$run_folder" ] && [ "$(field parent "$other/run.json")" = "$run_folder/checkpoints/checkpoint-1" ] || problem+="  parent: $(field parent "$other/run.json")"$'\n'
cmp -s "$other/checkpoints/checkpoint-3/model.safetensors" "$run_folder/checkpoints/checkpoint-3/model.safetensors" || problem+="  other weights after the same updates"$'\n'
[ "$before" = "$(find "$run_folder" -type f ! -name lock -printf '%p %s %T@\n' | sort)" ] || problem+="  the old run changed"$'\n'
report "it makes a run of its own and leaves the old one alone" "$problem"

# Damage: the newest whole checkpoint is used; without one, nothing is trained.
fresh hurt
flip "$run_folder/checkpoints/checkpoint-3/model.safetensors"
run train good.yaml --resume "$run_folder" "${same[@]}"
holds "a damaged newest checkpoint" 0 'checkpoint-3' 'damaged' 'checkpoint-2 (2 updates done'
report "the lost update is made again" "$([ "$(field step "$run_folder/run.json")" = 3 ] || echo '  it is not')"
fresh hurt
echo "a person's note" >"$run_folder/checkpoints/checkpoint-3/note.txt"
run train good.yaml --resume "$run_folder" "${same[@]}"
holds "a foreign file in a checkpoint" 0 'checkpoint-3 (3 updates done'
rm "$run_folder/checkpoints/checkpoint-3/optimizer.safetensors"
run train good.yaml --resume "$run_folder" "${same[@]}"
holds "a checkpoint without a file" 0 'optimizer.safetensors' 'checkpoint-2 (2 updates done'
fresh hurt
rm "$run_folder/checkpoints/checkpoint-3/manifest.json"
run train good.yaml --resume "$run_folder" "${same[@]}"
holds "a checkpoint without a manifest" 0 'checkpoint-2 (2 updates done'
fresh hurt
flip "$run_folder/checkpoints/checkpoint-2/trainer_state.json"
refused "a damaged checkpoint by name" 1 'damaged' 'checkpoint-2/trainer_state.json' 'expected:' 'XXH3' 'got:' 'remedy:' -- eval "$run_folder/checkpoints/checkpoint-2"
run train good.yaml --resume "$run_folder/checkpoints/checkpoint-2" "${same[@]}"
holds "--resume of a damaged checkpoint by name" 1 'checkpoint-2/trainer_state.json' 'expected:' 'remedy:'
for file in "$run_folder"/checkpoints/*/model.safetensors; do flip "$file"; done
run train good.yaml --resume "$run_folder" "${same[@]}"
holds "every checkpoint damaged" 1 'no checkpoint of this run can be used' 'all damaged' 'remedy:'
report "nothing is trained on damage" "$([ "$(field step "$run_folder/run.json")" = 3 ] && ! grep -q 'step=' "$work/err" || echo '  it trained')"
# A manifest of tomorrow: the refusal of a wrong checksum tells the right one.
fresh hurt
manifest=$run_folder/checkpoints/checkpoint-3/manifest.json
sed -i 's/"format": 1/"format": 2/' "$manifest"
run eval "$run_folder/checkpoints/checkpoint-3"
holds "a manifest that was changed" 1 'manifest.json: `checksum`' 'by what the file holds' 'remedy:'
checksum=$(sed -n 's/.*expected: \([0-9a-f]\{32\}\), by.*/\1/p' "$work/err")
sed -i "s/\"checksum\": \"[0-9a-f]*\"/\"checksum\": \"$checksum\"/" "$manifest"
refused "a manifest of a newer format" 1 'the checkpoint has another format' 'manifest.json: `format`' 'expected: 1' '2 (newer)' 'remedy:' -- eval "$run_folder/checkpoints/checkpoint-3"
run train good.yaml --resume "$run_folder" "${same[@]}"
holds "it is passed over" 0 'another format' 'checkpoint-2 (2 updates done'

# --- eval and runs
fresh judged
run eval "$run_folder"
holds "eval of a run" 0 'checkpoint-3' 'eval/loss' 'eval/perplexity'
loss=$(sed -n 's/^eval\/loss *//p' "$work/out")
for what in judged "$run_folder/checkpoints/checkpoint-3" runs/latest; do
  run eval "$what"
  report "eval $what is the same" "$([ "$code" -eq 0 ] && [ "$(sed -n 's/^eval\/loss *//p' "$work/out")" = "$loss" ] || echo "  exit code $code")"
done
run eval "$run_folder/checkpoints/checkpoint-1"
report "eval of an older checkpoint is another" "$([ "$code" -eq 0 ] && [ "$(sed -n 's/^eval\/loss *//p' "$work/out")" != "$loss" ] || echo "  exit code $code, or the same loss")"
run eval "$run_folder" --json
problem=
is_json "$work/out" || problem+="  not JSON"$'\n'
[ "$(printf %.6f "$(field 'eval.loss' "$work/out")")" = "$loss" ] || problem+="  loss $(field 'eval.loss' "$work/out"), not $loss"$'\n'
[ "$(printf %.6f "$(field validation_loss "$run_folder/run.json")")" = "$loss" ] || problem+="  training said $(field validation_loss "$run_folder/run.json")"$'\n'
report "eval --json" "$problem"
refused "eval of nowhere" 2 'no run at `nowhere`' 'expected:' 'remedy:' -- eval nowhere
refused "eval of a folder that is no model" 2 'no run at `no-run`' 'remedy:' -- eval no-run
tr a-z b-za <"$repository/README.md" | head -c 4000 >letters.txt
refused "eval with another vocabulary" 2 'data.train=letters.txt' 'another vocabulary' 'tokenizer.json' 'data.validation=' -- eval "$run_folder" data.train=letters.txt model.vocab_size=auto
run runs
holds "runs" 0 "judged/$(basename "$run_folder")" '3/3' 'done' 'stopped' 'checkpoints'
run runs --json
is_json "$work/out" && [ "$(grep -c '"state": "done"' "$work/out")" -ge 5 ] && grep -q "\"judged/$(basename "$run_folder")\"" "$work/out"
report "runs --json" "$([ $? -eq 0 ] || echo '  not JSON, or runs are missing')"
refused "runs nowhere" 2 'no folder of runs at `nowhere`' 'expected:' 'remedy:' -- runs nowhere
run runs no-run
holds "runs of an empty folder" 0 'no runs in no-run'

"$binary" train good.yaml training.max_steps=1000000 training.eval_every=1000000 --run-name killed >"$work/out" 2>"$work/err" </dev/null &
child=$!
for _ in $(seq 300); do
  grep -qs '"type":"train"' runs/killed/*/metrics.jsonl && break
  sleep 0.1
done
run runs
report "a run at work" "$(grep -qE 'killed/[^ ]+ +running ' "$work/out" || echo '  is not shown as running')"
run watch killed
holds "watch of a run at work" 0 '● running' 'updates' 'loss' 'throughput' 'time of an update' 'step='
run train good.yaml --run-name killed --resume
holds "a run at work is not to be resumed" 2 'another process trains in this run folder' "process $child" 'remedy:'
kill -KILL "$child"
wait "$child" 2>/dev/null
child=
run runs
report "a run that was killed" "$(grep -qE 'killed/[^ ]+ +died ' "$work/out" || echo '  is not shown as died')"
run watch killed
holds "watch of a run that was killed" 0 '● crashed' 'time of an update'
run train good.yaml --run-name killed --resume
holds "a run killed before its first checkpoint begins again" 0 'taken over from process' 'step=3/3'
run runs
report "then it is done" "$(grep -qE 'killed/[^ ]+ +done ' "$work/out" || echo '  it is not')"

# --- watch and compare: they read, and change nothing
run train good.yaml training.max_steps=8 --run-name before
before=$(readlink -f runs/latest)
seen=$(listing)
run watch
holds "watch of the latest run" 0 "before/$(basename "$before")" '● finished' '100 %  8 / 8 updates' '● validation' 'time of an update' 'backward' 'log'
report "watch on no terminal writes no codes" "$(grep $'\033' "$work/out")"
for what in before "$before" "$before/checkpoints/checkpoint-8"; do
  run watch "$what" --once
  holds "watch $what" 0 '● finished'
done
CLICOLOR_FORCE=1 run watch before
report "watch in colour" "$(grep -q $'\033\\[32m' "$work/out" || echo '  no colour')"
NO_COLOR=1 CLICOLOR_FORCE=1 run watch before
report "watch with NO_COLOR" "$(grep $'\033' "$work/out")"
run watch before --json
report "watch --json" "$(is_json "$work/out" && [ "$(field state "$work/out")" = finished ] && [ "$(field step "$work/out")" = 8 ] || echo '  not JSON, or not this run')"
run compare before before
holds "a run beside itself" 0 'time of an update' 'noise ±' 'throughput' 'memory' 'loss at 8' '+0.0000' 'not slower'
report "watch and compare change nothing" "$([ "$seen" = "$(listing)" ] || diff <(echo "$seen") <(listing))"
mkdir -p runs/{slow,cut,newer,bare}
for copy in slow cut newer; do cp -r "$before" "runs/$copy/"; done
sed -i 's/"time\/step":[0-9.e+-]*/"time\/step":10.5/; s/"throughput\/tokens_per_sec":[0-9.e+-]*/"throughput\/tokens_per_sec":6.4/' runs/slow/*/metrics.jsonl
run compare before slow
holds "a slower run" 5 '-> B 10500 ms' 'slower by more than 5 %'
run compare before slow --json
report "a slower run as JSON" "$([ "$code" -eq 5 ] && is_json "$work/out" && grep -q '"regression": true' "$work/out" || echo "  exit code $code, or not JSON")"
run compare slow before --max-regression 0.5
holds "a faster run" 0 'not slower by more than 50 %'
run train good.yaml training.max_steps=3 training.batch_size=4 --run-name other-work
run compare before other-work
holds "other work" 0 'do not do the same work' 'training.batch_size' 'noise unknown'
run compare before other-work --max-regression 5%
holds "too short for a verdict" 2 'too short to be judged' 'expected:' 'got:      8 and 3' 'remedy:'
truncate -s -100 runs/cut/*/metrics.jsonl
sed -i '3s/^{/[/' runs/cut/*/metrics.jsonl
run watch cut
holds "watch of damaged metrics" 0 '1 damaged line left out' 'the last line is cut off' '● finished' 'time of an update'
sed -i '1s/"schema":1/"schema":2,"unknown":{"a":[1]}/' runs/newer/*/metrics.jsonl
run watch newer
holds "watch of a newer version" 0 'newer version (schema 2' '● finished' 'time of an update'
run compare before newer
holds "compare with a newer version" 0 'newer version (schema 2' 'not slower'
mkdir runs/bare/20000101-000000-000000
echo '{"status":' >runs/bare/20000101-000000-000000/run.json
mkdir runs/bare/20000101-000000-000000/metrics.jsonl
run watch bare
holds "watch of next to nothing" 0 '● unknown' 'run.json: not a JSON object' 'no metrics.jsonl' 'no update has been reported yet'
mkdir lost
cp "$before"/{metrics.jsonl,train.log} lost
run watch lost
holds "watch of a folder that lost the rest" 0 '● unknown' 'no run.json' 'no config.resolved.yaml' 'time of an update'
run compare bare before
holds "compare with next to nothing" 0 'no times: A has reported no update'
rm -r runs/{slow,cut,newer,bare}
refused "watch of nowhere" 2 'no run at `nowhere`' 'expected:' 'got:      nothing there' 'remedy:' -- watch nowhere
refused "watch of a name that is too long" 2 'no run at `aaa' 'remedy:' -- watch "$(printf 'a%.0s' $(seq 300))"
refused "watch of a folder that is no run" 2 'a folder without run.json' 'remedy:' -- watch no-run
refused "compare with nowhere" 2 'no run at `nowhere`' 'remedy:' -- compare before nowhere
refused "compare with one run" 2 'RUN_B' -- compare before
for share in five -5% 5%% 1e9 nan; do
  refused "--max-regression=$share" 2 '--max-regression' 'expected: a share' 'remedy:' -- compare before before "--max-regression=$share"
done

# --- where runs cannot be, and what a run can be told
for place in /proc/x /dev/null/x; do
  refused "runs_folder=$place" 1 "$place" 'cannot create the folder' 'remedy:' -- train good.yaml "runs_folder=$place"
done
echo taken >taken
refused "runs_folder under a file" 1 'taken' 'cannot create the folder' 'remedy:' -- train good.yaml runs_folder=taken
run train good.yaml runtime.log_format=json
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"$'\n'
[ "$(grep -c '"type":"train"' "$work/err")" -eq 3 ] || problem+="  not three lines of training"$'\n'
sed '1,/^run  /d' "$work/err" >"$work/lines"
while read -r line; do
  [ -z "$line" ] || is_json <(echo "$line") || problem+="  not JSON: $line"$'\n'
done <"$work/lines"
report "runtime.log_format=json" "$problem"
run train good.yaml runtime.log_format=none
report "runtime.log_format=none" "$([ "$code" -eq 0 ] && ! grep -q 'step' "$work/err" || echo "  exit code $code, or words about steps")"
run train good.yaml --run-name pause runtime.stop_after=2
holds "runtime.stop_after" 75 'stopped after 2 updates' 'millrace train --resume runs/pause/'
run train good.yaml --run-name pause --resume
holds "and it goes on" 0 'changed  runtime.stop_after: 2 steps -> ' 'step=3/3'
refused "a metric that is not there" 2 'checkpoint.metric' 'accuracy' 'expected: one of eval/loss' 'remedy:   checkpoint.metric=eval/loss' -- train good.yaml checkpoint.metric=accuracy
refused "a metric of almost this name" 2 'checkpoint.metric' 'eval/blue' 'did you mean `eval/bleu`?' -- train good.yaml checkpoint.metric=eval/blue
refused "a metric nearly there" 2 'got:      eval/los' 'did you mean `eval/loss`' -- train good.yaml checkpoint.metric=eval/los
refused "warm-up as a time" 2 'bad value for `training.warmup`' 'expected: a duration such as 500 (steps), 1e6 tokens or 2 epochs, and no time' '3 minutes' 'remedy:' -- train good.yaml "training.warmup=3 minutes"
refused "validation by the clock" 2 'bad value for `training.eval_every`' 'and no times' '10 minutes' 'remedy:' -- train good.yaml "training.eval_every=10 minutes"
for other in training.epochs=3:training.num_epochs training.lr=1:training.learning_rate lr=1:training.learning_rate n_embd=8:model.d_model model.n_layer=1:model.num_layers max_iters=5:training.max_steps block_size=9:training.max_length max_grad_norm=1:training.gradient_clip gradient_accumulation_steps=2:training.grad_accum training.per_device_train_batch_size=4:training.batch_size num_train_epochs=1:training.num_epochs; do
  refused "what others call ${other#*:}" 2 'unknown key' "did you mean \`${other#*:}\`?" -- train good.yaml "${other%:*}"
done
refused "a unit that is none" 2 'training.eval_every' '3 fortnights' 'expected:' 'remedy:' -- train good.yaml "training.eval_every=3 fortnights"
run train good.yaml "training.eval_every=1 epoch" training.max_steps=0 training.num_epochs=2 data.grammar_chars=1000
report "validation once an epoch" "$([ "$code" -eq 0 ] && [ "$(grep -c '"type":"eval"' runs/latest/metrics.jsonl)" -eq 2 ] || echo "  exit code $code, $(grep -c '"type":"eval"' runs/latest/metrics.jsonl) times")"
run train good.yaml sample.every=1
report "sample.every" "$([ "$code" -eq 0 ] && [ "$(grep -c 'the model writes' "$work/err")" -eq 3 ] || echo "  exit code $code, $(grep -c 'the model writes' "$work/err") samples")"
# Chosen by a metric that is larger than the loss at every step.
run train good.yaml --run-name judged training.eval_every=1 checkpoint.every=1
run train good.yaml --run-name judged --resume training.eval_every=1 checkpoint.every=1 training.max_steps=4 checkpoint.metric=eval/perplexity
holds "another metric on resume" 0 'changed  checkpoint.metric: eval/loss -> eval/perplexity' 'the best by eval/loss so far' 'begins anew' 'best         eval/perplexity '
report "said once, and what it begins with is of the new one" "$([ "$(grep -c 'begins anew' runs/latest/train.log)" -eq 1 ] && grep -q 'step=4 .*best=yes' runs/latest/train.log && grep -q '"metric_for_best_model": "eval/perplexity"' runs/latest/checkpoints/checkpoint-4/trainer_state.json || grep -n 'best\|anew' runs/latest/train.log)"
run train good.yaml training.early_stop_patience=2 training.early_stop_delta=1 training.max_steps=500 training.eval_every=1
holds "early stopping" 0 'stopped early, no gain since'
report "after two without gain" "$([ "$(field step runs/latest/run.json)" = 3 ] || echo "  after $(field step runs/latest/run.json)")"
# The averaged weights are what is validated and saved; a sitting more or less does not change them.
run train good.yaml --run-name average training.ema_decay=0.9 training.max_steps=4
whole=$(readlink -f runs/latest)
run train good.yaml --run-name average-2 training.ema_decay=0.9 training.max_steps=4 runtime.stop_after=2
holds "training.ema_decay" 75 'stopped after 2 updates'
run train --resume average-2 runtime.stop_after=0
holds "training.ema_decay goes on" 0 'to the bit' 'step=4/4'
report "to the same average" "$(cmp "$whole/checkpoints/checkpoint-4/model.safetensors" runs/latest/checkpoints/checkpoint-4/model.safetensors 2>&1)"
run train good.yaml --run-name average --resume training.ema_decay=0.5 training.max_steps=4
holds "another ema_decay" 2 'training.ema_decay' 'expected: 0.9'

# --- data sets by name
for i in $(seq 200); do echo "to be or not to be, $i"; done >play.txt
{
  cat good.yaml
  printf 'datasets:\n  play: {train: play.txt, max_chars: 2000}\n  grammar:\n    train: builtin:grammar\n'
} >sets.yaml
refused "a data set of no such name" 2 'no data set is called `hamlet`' 'command line: --dataset hamlet' 'expected: one of `play`, `grammar`' 'sets.yaml' 'got:      `hamlet`' 'remedy:   add it' -- train sets.yaml --dataset hamlet
refused "a data set nearly there" 2 'did you mean `grammar`' -- plan sets.yaml --dataset gramar
refused "a config without data sets" 2 'no data set is called `play`' 'good.yaml has none' 'data.train=FILE' -- data stats good.yaml --dataset play
sed 's/max_chars/max_cahrs/' sets.yaml >sets-typo.yaml
refused "an unknown key of a data set, taken or not" 2 'sets-typo.yaml:18:27: `datasets.play.max_cahrs`' 'did you mean `data.max_chars`' -- plan sets-typo.yaml --dataset grammar
run train sets.yaml --dataset play --run-name named checkpoint.every=1 runtime.stop_after=2
holds "--dataset" 75 'play.txt: 1,800 training'
report "its keys are in the resolved config" "$(grep -q 'train: \[play.txt\]  # sets.yaml:18:17' runs/latest/config.resolved.yaml && grep -q 'max_chars: 2000 ' runs/latest/config.resolved.yaml || grep -nE ' train:|max_chars' runs/latest/config.resolved.yaml)"
run train sets.yaml --run-name named --resume
holds "going on without it" 2 'cannot go on with another `data' 'remedy:'
run train sets.yaml --dataset play --run-name named --resume
holds "going on with it" 0 'to the bit' 'step=3/3'
run train --resume named training.max_steps=4
holds "or by the run alone" 0 'play.txt: 1,800 training' 'step=4/4'
run data prepare sets.yaml --dataset play data.max_chars=1000
holds "what the command line says goes before it" 0 'play.txt'
report "and what it says otherwise stays" "$(run train sets.yaml --dataset play data.max_chars=1000 >/dev/null; grep -q 'play.txt: 900 training' "$work/err" || echo '  it does not')"

# --- the batch that memory and data allow
run plan good.yaml training.batch_size=8 --json
eight=$(field arena_bytes "$work/out")
run plan good.yaml training.batch_size=auto
holds "a batch by the data" 0 'batch        24 (auto: with 32 sequences an update an epoch would be 39 updates, fewer than 50); the largest that fits'
run plan good.yaml training.batch_size=auto "runtime.memory_limit=$eight"
holds "a batch by the memory" 0 'batch        8 (auto: 16 would need ' 'recomputed   nothing'
run plan good.yaml training.batch_size=auto --memory "$((eight - 1))" --json
report "a byte less, a smaller batch" "$([ "$code" -eq 0 ] && [ "$(field batch_size "$work/out")" = 4 ] || echo "  exit code $code, batch $(field batch_size "$work/out")")"
refused "not even one sequence" 3 'does not fit' '`training.batch_size` (auto: not even it fits in ' 'remedy:' -- train good.yaml training.batch_size=auto runtime.memory_limit=1KB
run train good.yaml --run-name eight training.batch_size=8 training.max_steps=4
whole=$(readlink -f runs/latest)
run train good.yaml --run-name auto training.batch_size=auto training.max_steps=4 "runtime.memory_limit=$eight" runtime.stop_after=2
holds "training with it" 75 'batch    8 (auto: 16 would need ' '16 tokens x 8 sequences'
report "the resolved config has it" "$(grep -q ' batch_size: 8  # auto: 16 would need ' runs/latest/config.resolved.yaml || grep batch_size runs/latest/config.resolved.yaml)"
run train good.yaml --run-name auto --resume training.batch_size=auto training.max_steps=4
holds "a resumed run keeps it, with more memory as well" 0 'to the bit' '16 tokens x 8 sequences' 'step=4/4'
report "and nothing about it changed" "$(grep 'changed  training.[bg]' "$work/err")"
report "to the weights of a batch that was said" "$(cmp "$whole/checkpoints/checkpoint-4/model.safetensors" runs/latest/checkpoints/checkpoint-4/model.safetensors 2>&1)"
run train good.yaml --run-name parts training.batch_size=auto training.effective_batch=24 "runtime.memory_limit=$eight"
resolved() { sed -n "s/^ *$1: \([0-9]*\) .*/\1/p" runs/latest/config.resolved.yaml; }
report "an effective batch in parts that fit" "$([ "$code" -eq 0 ] && [ "$(resolved grad_accum)" -gt 1 ] && [ $(($(resolved batch_size) * $(resolved grad_accum))) -eq 24 ] || echo "  exit code $code, $(resolved batch_size) x $(resolved grad_accum)")"
refused "an effective batch that the parts do not make" 2 'training.effective_batch' 'batch_size 4 x grad_accum 5 = 20' -- train good.yaml training.batch_size=auto training.effective_batch=24 training.grad_accum=5

# --- epochs
run train good.yaml --run-name epochs training.max_steps=0 training.num_epochs=4 data.grammar_chars=1000 'checkpoint.every=2 epochs' checkpoint.keep_last=9 checkpoint.keep_best=0
holds "epochs" 0 'Epoch [1/4] Average Train Loss: ' 'Epoch [4/4] Average Train Loss: '
report "their times" "$([ "$(grep -cE '^  Epoch time: [0-9.]+s \| Throughput: [0-9]+ samples/sec' "$work/err")" -eq 4 ] || echo '  not four')"
last=$(field step runs/latest/run.json)
report "a checkpoint every two epochs" "$([ "$(ls -v runs/latest/checkpoints)" = "checkpoint-$((last / 2))"$'\n'"checkpoint-$last" ] || ls runs/latest/checkpoints)"
report "made in the loop, not behind it" "$(cmp -s "runs/latest/checkpoints/checkpoint-$((last / 2))/model.safetensors" "runs/latest/checkpoints/checkpoint-$last/model.safetensors" && echo '  they hold the same weights')"

# --- help, version, colour
run --help
problem=
[ "$code" -eq 0 ] || problem+="  exit code $code"
commands=$(tr -d '\n' <"$repository/src/cli/main.cc" | grep -oE '\bapp\.add_subcommand\( *"[a-z-]+' | sed 's/.*"//')
[ -n "$commands" ] || problem+="  found no sub-commands in src/cli"
for command in $commands; do
  grep -qE "millrace $command\b" "$work/out" || problem+="  --help lacks \`$command\`"$'\n'
done
report "--help" "$problem"
cp "$work/out" "$work/help"
run
report "no argument is --help" "$([ "$code" -eq 0 ] && cmp "$work/help" "$work/out" 2>&1 || echo "  exit code $code, or another text")"
for command in $commands; do
  run "$command" --help
  report "$command --help" "$([ "$code" -eq 0 ] && grep -q -- '--help' "$work/out" || echo "  exit code $code")"
done
run --version
holds "--version" 0 'instructions  avx' 'oneDNN        ' 'CUDA backend  '
if git -C "$repository" rev-parse HEAD >"$work/commit" 2>/dev/null; then
  report "--version names a commit" "$(git -C "$repository" cat-file -e "$(sed -n 's/^millrace .*, commit //p' "$work/out")" 2>&1 || cat "$work/out")"
fi
cp "$work/out" "$work/text"
run version
report "version is --version" "$(cmp "$work/text" "$work/out" 2>&1)"
run help
report "help is --help" "$([ "$code" -eq 0 ] && cmp "$work/help" "$work/out" 2>&1 || echo "  exit code $code, or another text")"
run train --help
cp "$work/out" "$work/text"
run help train
report "help COMMAND is COMMAND --help" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code, or another text")"
report "every exit code is in the help" "$(for number in 0 1 2 3 4 5 10 75; do grep -A1 '^Exit codes' "$work/help" | grep -qE "(: |, |^)$number [a-z]" || echo "  not $number"; done)"

escape=$'\033\\[[0-9;]*m'
run plan typo.yaml
report "no colour into a file" "$(grep -qE "$escape" "$work/err" && echo '  colour')"
CLICOLOR_FORCE=1 run plan typo.yaml
report "CLICOLOR_FORCE" "$(grep -qE "$escape" "$work/err" || echo '  no colour')"
NO_COLOR=1 CLICOLOR_FORCE=1 run plan typo.yaml
report "NO_COLOR wins" "$(grep -qE "$escape" "$work/err" && echo '  colour')"
HOME=/proc XDG_CACHE_HOME= MILLRACE_CACHE= run plan good.yaml
holds "a cache that cannot be written" 1 'cannot create the folder' '/proc/.cache' 'or set MILLRACE_CACHE to another folder'
mkdir -p home && for i in $(seq 200); do echo "line $i of the text"; done >home/lines.txt
HOME=$box/home run data stats good.yaml 'data.train=~/lines.txt'
holds "a path in the user's own folder" 0 "$box/home/lines.txt"
rm -r home
if command -v script >/dev/null; then # a terminal: the bar, with colours and without
  on_terminal() { TERM=xterm script -qec "'$binary' $*" /dev/null >"$work/out" 2>"$work/err" </dev/null; }
  on_terminal train good.yaml --run-name slow training.max_steps=40 training.log_interval=1000 data.grammar_chars=2000000 training.eval_context=15 training.eval_every=1000
  report "progress before the first figures, and of validation" "$(grep -qaE 'train +0% .*0/40  first figures at update 40' "$work/out" && grep -qaE 'validating +[0-9]+ %' "$work/out" || echo '  none')"
  on_terminal eval slow
  report "progress of eval" "$(grep -qaE 'validating +[0-9]+ %' "$work/out" || echo '  none')"
  awk 'BEGIN { srand(1); for (i = 0; i < 64000; i++) { for (n = 3 + int(rand() * 6); n > 0; n--) printf "%c", 97 + int(rand() * 26); printf i % 8 ? " " : "\n" } }' >words.txt
  MILLRACE_CACHE=$work/new on_terminal plan "$repository/configs/quickstart.yaml" data.train=words.txt data.tokenizer=unigram data.vocab_size=2000
  for wait in 'learning the pieces of the vocabulary, [0-9]+ s' 'its ceiling is measured, once, [0-9]+ s'; do
    report "what takes seconds is said: $wait" "$(grep -qaE "$wait" "$work/out" || echo '  it is not')"
  done
  report "and not told again" "$(MILLRACE_CACHE=$work/new on_terminal plan "$repository/configs/quickstart.yaml"; grep -qaE 'its ceiling' "$work/out" && echo '  it is')"
  TERM=xterm script -qec "'$binary' train good.yaml training.max_steps=40" /dev/null >"$work/out" 2>"$work/err" </dev/null
  report "a bar with colour on a terminal" "$(grep -qaE "$escape" "$work/out" && grep -qa 'train 100%' "$work/out" || echo '  none')"
  NO_COLOR=1 TERM=xterm script -qec "'$binary' train good.yaml training.max_steps=40" /dev/null >"$work/out" 2>"$work/err" </dev/null
  report "NO_COLOR on a terminal" "$(grep -qaE "$escape" "$work/out" && echo '  colour')"
fi

# --- Data: what is read, kept, passed over, refused.
printf 'question,answer\n' >qa.csv
for i in $(seq 60); do printf '"what is %d\nplus one?",%d\n' "$i" $((i + 1)) >>qa.csv; done
run data stats good.yaml data.train=qa.csv 'data.fields=[question, answer]' training.max_length=64
holds "data stats of records" 0 'what padding costs' 'no buckets' 'buckets' 'packing' '<- this config' 'p99'
run data stats good.yaml data.train=qa.csv 'data.fields=[question, answer]' training.max_length=64 --json
report "data stats --json" "$(is_json "$work/out" && grep -q '"useful_share"' "$work/out" || cat "$work/out")"
run data stats good.yaml
holds "data stats of a long text" 0 'windows of 16'
run data prepare good.yaml data.train=qa.csv 'data.fields=[question, answer]'
holds "data prepare finds what stats made" 0 'made         before'
run data prepare good.yaml data.train=qa.csv 'data.fields=[question, answer]' data.tokenizer=byte
holds "data prepare makes the rest" 0 'tokenize 1' 'write'
tokens=$(sed -n 's/^cache *//p' "$work/out")/train/tokens.bin
flip "$tokens"
run train good.yaml data.train=qa.csv 'data.fields=[question, answer]' data.tokenizer=byte training.max_length=32
holds "a damaged cache is made again, with one line" 0 'damaged data cache in' 'it is made again' 'step=3/3'
for workers in 0 1 2 7; do
  run train good.yaml data.train=qa.csv 'data.fields=[question, answer]' training.max_length=32 "data.num_workers=$workers" --run-name workers
  holds "data.num_workers=$workers" 0 'step=3/3'
  grep -h '"train/loss"' runs/latest/metrics.jsonl | sed 's/.*"train\/loss":\([^,}]*\).*/\1/' >"losses.$workers"
  report "the losses of $workers workers" "$(cmp losses.0 "losses.$workers" 2>&1)"
done
good_with 's/type: gpt/type: pointer_generator/; /d_model/d; /num_heads/d' pointer.yaml
pairs=(data.train=qa.csv 'data.fields=[question, answer]' data.tokenizer=word model.hidden_dim=16)
run train pointer.yaml "${pairs[@]}" model.chunk_len=8 model.num_chunks=2 --run-name pointer
holds "a pointer-generator is trained, and writes no sample" 0 'step=3/3' 'validation loss'
run generate runs/latest --prompt 'who is zyxwv' --min-tokens 2
report "a pointer-generator writes" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 1 ] || echo "  exit code $code")"
refused "a beam wider than the vocabulary of words" 2 'wider than the vocabulary' 'expected: at most' 'got:      1000' 'remedy:' -- generate runs/latest --prompt who --beam 1000
run generate runs/latest --prompt 'who is zyxwv' --beam 1 --ids
cp "$work/out" "$work/text"
run generate runs/latest --prompt 'who is zyxwv' --beam 0 --temperature 0 --ids
report "the likeliest of what is drawn where words are copied" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code")"
run generate runs/latest --prompt 'who is zyxwv' --beam 0 --temperature 5 --max-tokens 60
report "words are drawn where words are copied" "$([ "$code" -eq 0 ] && ! grep -q '<unk>' "$work/out" || echo "  exit code $code, or an unknown word")"
refused "two lengths of a source" 2 'model.chunk_len=8' 'a source has up to 32' 'training.max_source_length=16' -- train pointer.yaml "${pairs[@]}" model.chunk_len=8 model.num_chunks=2 training.max_source_length=32
refused "coverage that starts without coverage" 2 'model.coverage_start' 'expected:' 'remedy:' -- train pointer.yaml "${pairs[@]}" model.coverage=false model.coverage_start=2
covered=("${pairs[@]}" model.coverage_start=3 training.grad_accum=2 training.max_steps=4)
run train pointer.yaml "${covered[@]}" --run-name covered
whole=$(readlink -f runs/latest)
run train pointer.yaml "${covered[@]}" --run-name covered-2 runtime.stop_after=1
for _ in 2 3; do run train --resume covered-2; done
holds "coverage that starts goes on" 75 'to the bit' 'stopped after 3 updates'
run train --resume covered-2 runtime.stop_after=0
report "to the same weights with coverage" "$(cmp "$whole/checkpoints/checkpoint-4/model.safetensors" runs/latest/checkpoints/checkpoint-4/model.safetensors 2>&1)"
refused "labels smoothed over words that are copied" 2 'training.label_smoothing' 'copies words' 'training.label_smoothing=0' -- train pointer.yaml "${pairs[@]}" training.label_smoothing=0.1
printf 'bad,bad,bad\n' >>qa.csv
refused "a bad record" 2 'qa.csv:122' 'expected: 2 fields' 'got:      3' 'data.on_bad_record=skip' -- train good.yaml data.train=qa.csv 'data.fields=[question, answer]'
run data prepare good.yaml data.train=qa.csv 'data.fields=[question, answer]' data.on_bad_record=skip
holds "a bad record passed over" 0 '1 bad records were passed over' 'qa.csv:122'
refused "a field that is not there" 2 'no column is called `anwser`' 'did you mean `answer`' -- train good.yaml data.train=qa.csv data.fields=anwser
refused "pairs as one long text" 2 'data.batching' 'pairs cannot be read' -- train good.yaml data.train=qa.csv 'data.fields=[question, answer]' data.on_bad_record=skip data.batching=windows
refused "a long text in buckets" 2 'data.batching' 'data.format=lines' -- train good.yaml data.batching=buckets
refused "a chunk that is all overlap" 2 'data.chunk_overlap' 'less than training.max_length = 16' -- train good.yaml data.chunk_overlap=16
printf '{"text": "one"}\n{"text": 2}\n' >bad.jsonl
refused "JSON lines with a number for a text" 2 'bad.jsonl:2' '`text`' -- train good.yaml data.train=bad.jsonl
# Paths of 20 to 31 points, on curves of many kinds.
for i in $(seq 0 23); do
  for t in $(seq 0 $((19 + i % 12))); do echo "$((t * 10)) $i $((i + t)).$((i % 10)) $((t * t * (i % 5 - 2))).25"; done
done >walks.txt
good_with 's/type: gpt/type: trajectory/; s/max_length: .*/max_length: 24/' walks.yaml
walks=(data.train=walks.txt data.format=trajectories data.validation_fraction=0.2)
run train walks.yaml "${walks[@]}" model.dropout=0.1 model.likelihood=gaussian training.max_steps=4 --run-name walks
holds "a trajectory model is trained, and writes no sample" 0 'step=4/4' 'validation loss'
whole=$(readlink -f runs/latest)
report "its normalisation is in the checkpoint" "$(grep -q deviation "$whole/checkpoints/checkpoint-4/normalisation.json" || echo "  no normalisation.json")"
run train walks.yaml "${walks[@]}" model.dropout=0.1 model.likelihood=gaussian training.max_steps=4 --run-name walks-2 runtime.stop_after=1
for _ in 2 3; do run train --resume walks-2; done
holds "a trajectory model goes on" 75 'to the bit' 'stopped after 3 updates'
run train --resume walks-2 runtime.stop_after=0
report "to the same weights of a trajectory model" "$(cmp "$whole/checkpoints/checkpoint-4/model.safetensors" runs/latest/checkpoints/checkpoint-4/model.safetensors 2>&1)"
run eval "$whole"
holds "eval of a trajectory model" 0 'eval/ade' 'eval/fde' 'eval/loss'
report "and no perplexity" "$(grep perplexity "$work/out")"
head -161 walks.txt >fewer.txt # the first seven
run eval "$whole" data.validation=fewer.txt
holds "eval on other paths" 0 'eval/ade'
cp "$work/out" "$work/text"
mv walks.txt away.txt
run eval "$whole" data.validation=fewer.txt
report "and without the paths of training" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || cat "$work/err")"
mv away.txt walks.txt
run eval "$whole" --split test data.test=fewer.txt
report "and as test data" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code")"
refused "a test of paths that are not there" 2 'no test data' 'data.test=FILE' -- eval "$whole" --split test
# fewer.txt has a normalisation of its own, and the one of the weights counts.
run train walks.yaml data.train=fewer.txt data.format=trajectories data.validation_fraction=0.2 model.init_from="$whole" training.max_steps=2 --run-name walks-on
holds "a trajectory model is trained on" 0 'step=2/2' 'validation loss'
report "with the normalisation of its weights" "$(cmp "$whole/checkpoints/checkpoint-4/normalisation.json" runs/latest/checkpoints/checkpoint-2/normalisation.json 2>&1)"
run eval walks-on
holds "and evaluated" 0 'eval/ade'
cp -r "$whole/checkpoints/checkpoint-4" bare
rm bare/normalisation.json bare/manifest.json
refused "weights for states whose normalisation is gone" 2 'bare/normalisation.json' 'remedy:   name a run' -- train walks.yaml "${walks[@]}" model.init_from=bare
rm -r bare
refused "text for weights that read states" 2 'reads trajectories' 'data.format=trajectories' -- train walks.yaml model.init_from="$whole"
refused "eval with another normalisation" 2 'another normalisation' 'normalisation.json' 'data.validation=' -- eval "$whole" data.train=fewer.txt
for t in $(seq 0 9); do printf '%d 5 %d.5 2\n%d 6 1 %d.5\n' $((t * 10)) "$t" $((t * 10)) "$((9 - t))"; done >seen.txt
run generate "$whole" --input seen.txt
report "futures of two paths" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 24 ] && [ "$(head -1 "$work/out" | cut -f1,2)" = $'100\t5' ] &&
  [ "$(tail -1 "$work/out" | cut -f1,2)" = $'210\t6' ] || echo "  exit code $code")"
run generate "$whole" --input seen.txt --at-once 1
report "and as many one by one" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 24 ] || echo "  exit code $code")"
run export "$whole" paths-exported --dtype f32
holds "a trajectory model is exported" 0 'paths-exported: '
report "with its normalisation" "$(cmp "$whole/checkpoints/checkpoint-4/normalisation.json" paths-exported/normalisation.json 2>&1)"
run generate "$whole" --input seen.txt
cp "$work/out" "$work/text"
run generate paths-exported --input seen.txt
report "and predicts the same" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || echo "  exit code $code")"
run eval "$whole" data.validation=fewer.txt
cp "$work/out" "$work/text"
refused "eval of a folder that says nothing about data" 2 'says nothing about data' 'data.validation=FILE' -- eval paths-exported
run eval paths-exported data.train=walks.txt data.validation=fewer.txt data.format=trajectories
report "eval of what was exported, on data that is named" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || cat "$work/err")"
run train walks.yaml "${walks[@]}" model.init_from=paths-exported training.max_steps=1 --run-name walks-from-exported
holds "and trained on" 0 'step=1/1'
rm paths-exported/normalisation.json
refused "an export without a normalisation" 2 'paths-exported/normalisation.json' 'remedy:   name a run' -- export paths-exported again
rm -r paths-exported
# A class for each path, in a fifth column; that of every sixth is not known.
awk '{print $0, ($2 % 6 == 5 ? -1 : $2 % 3)}' walks.txt >kinds.txt
{ echo '# frame agent x y kind' && cat kinds.txt; } >named.txt
kinds=("${walks[@]}" data.train=kinds.txt data.class_column=5 model.classes=3)
run train walks.yaml "${kinds[@]}" training.max_steps=4 --run-name kinds
holds "a model of classes is trained" 0 'step=4/4' 'classes '
kinds_run=$(readlink -f runs/latest)
run train walks.yaml "${kinds[@]}" training.max_steps=4 --run-name kinds-2 runtime.stop_after=2
run train --resume kinds-2 runtime.stop_after=0
report "and goes on to the same weights" "$(cmp "$kinds_run/checkpoints/checkpoint-4/model.safetensors" runs/latest/checkpoints/checkpoint-4/model.safetensors 2>&1)"
run train walks.yaml "${kinds[@]}" data.train=named.txt data.class_column=kind training.max_steps=4 --run-name kinds-3
report "by name it is the same column" "$(cmp "$kinds_run/checkpoints/checkpoint-4/model.safetensors" runs/latest/checkpoints/checkpoint-4/model.safetensors 2>&1)"
run eval "$kinds_run"
holds "eval of classes" 0 'eval/class_accuracy' 'eval/ade' 'eval/loss'
run train walks.yaml "${kinds[@]}" training.max_steps=2 checkpoint.metric=eval/class_accuracy --run-name kinds-4
holds "classes say which checkpoint is best" 0 'step=2/2'
run generate "$kinds_run" --input seen.txt
report "a predicted class in the last column" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 24 ] && awk -F'\t' 'NF != 5 || $5 !~ /^[0-2]$/' "$work/out" || echo "  exit code $code")"
cp "$work/out" "$work/text"
awk '{print $0, "1"}' seen.txt >seen-kinds.txt
run generate "$kinds_run" --input seen-kinds.txt --class-column 5
report "the same whatever classes the input has" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || cat "$work/err")"
refused "an input with a column of classes" 2 'seen-kinds.txt' 'expected: 2 numbers' 'remedy:   --class-column' -- generate "$kinds_run" --input seen-kinds.txt
run data stats walks.yaml "${kinds[@]}"
holds "data stats of classes" 0 'one of 3 classes'
refused "classes without a column" 2 'model.classes=3' 'expected: data.class_column' 'remedy:' -- train walks.yaml "${walks[@]}" model.classes=3
refused "a column without classes" 2 'data.class_column=5' 'expected: model.classes' 'remedy:   model.classes=' -- train walks.yaml "${walks[@]}" data.train=kinds.txt data.class_column=5
refused "a column of classes for text" 2 'data.class_column=5' 'expected: a model with model.classes' 'remedy:   leave' -- train good.yaml data.class_column=5
refused "a class that there is not" 2 'kinds.txt:4' 'expected: a class, 0 to 1' 'got:      `2`' 'model.classes=3' -- train walks.yaml "${kinds[@]}" model.classes=2
sed '7s/[^ ]*$/left/' kinds.txt >left.txt
refused "a class that is no number" 2 'left.txt:7:' 'expected: a class, 0 to 2' 'got:      `left`' 'data.on_bad_record=skip' -- train walks.yaml "${kinds[@]}" data.train=left.txt
refused "a column that is not there" 2 'walks.txt:1:1' 'the class in column 5' 'got:      4' 'remedy:' -- train walks.yaml "${kinds[@]}" data.train=walks.txt
refused "a column that has no such name" 2 'named.txt:1:1' 'no column of the table is called `sort`' 'kind' 'remedy:' -- train walks.yaml "${kinds[@]}" data.train=named.txt data.class_column=sort
refused "the frame for a class" 2 'kinds.txt' 'column 1, the frame' 'remedy:' -- train walks.yaml "${kinds[@]}" data.class_column=1
refused "a class of one state" 2 'model.current' 'expected: 2 or more' 'remedy:   model.current=2' -- train walks.yaml "${kinds[@]}" model.current=1
refused "a metric of classes without" 2 'checkpoint.metric' 'eval/ade, eval/fde, eval/loss' -- train walks.yaml "${walks[@]}" checkpoint.metric=eval/class_accuracy
refused "a prompt for a trajectory model" 2 'paths' '--input FILE' -- generate "$whole" --prompt hello
{ echo 'frame,agent,x,y' && tr ' ' , <seen.txt; } >seen.csv
run generate "$whole" --input seen.txt
cp "$work/out" "$work/text"
run generate "$whole" --input seen.csv
report "the same of a table with a line of names" "$([ "$code" -eq 0 ] && cmp "$work/text" "$work/out" 2>&1 || cat "$work/err")"
{ cat seen.txt && printf '90 7 1 2\n0 8 1 2\n10 8 1 2\n'; } >moment.txt
run generate "$whole" --input moment.txt
holds "paths that are too short are passed over" 0 '2 of 4 paths have too few points' 'moment.txt: agent 7 from frame 90 on, 1 points' '2 paths'
report "and the others predicted" "$(cmp "$work/text" "$work/out" 2>&1)"
head -12 seen.txt >short.txt
refused "futures of a path with too few points" 2 'short.txt: agent 5' 'at least' 'got:      6 points' 'remedy:' -- generate "$whole" --input short.txt
printf '0 5 1 2\n10 5 1 nan\n' >nan.txt
refused "futures of a path with NaN" 2 'nan.txt:2:8' 'a finite number' -- generate "$whole" --input nan.txt
report "and no key of a config to help" "$(grep on_bad_record "$work/err")"
printf '0 5 1 2 3\n10 5 1 2 3\n' >wide.txt
refused "futures of points of another kind" 2 'wide.txt' 'expected: 2 numbers' 'got:      3' -- generate "$whole" --input wide.txt
refused "training on a path with NaN" 2 'nan.txt:2:8' 'a finite number' 'data.on_bad_record=skip' -- train walks.yaml "${walks[@]}" data.train=nan.txt
{ cat walks.txt && printf '0 77 1 2\n10 77 1 2\n'; } >with-short.txt
refused "training on a path with too few points" 2 'too few points' 'where:    with-short.txt: agent 77 from frame 0 on' 'at least 20 points' 'got:      2 points' 'data.on_bad_record=skip' -- train walks.yaml "${walks[@]}" data.train=with-short.txt
refused "training on none that is long enough" 2 'no path is long enough' 'at least 20 points' 'paths in short.txt, the longest of 6' -- train walks.yaml data.train=short.txt data.validation=short.txt data.format=trajectories data.on_bad_record=skip
refused "parts longer than a sequence" 2 'model.previous' 'training.max_length=42' -- train walks.yaml "${walks[@]}" model.previous=30 model.current=12
refused "channels that the data has not" 2 'model.channels' 'expected: 2' -- train walks.yaml "${walks[@]}" model.channels=3
refused "paths as one long text" 2 'data.batching' 'paths cannot be read' -- train walks.yaml "${walks[@]}" data.batching=windows
refused "a metric that paths have not" 2 'checkpoint.metric' 'eval/ade, eval/fde, eval/loss' -- train walks.yaml "${walks[@]}" checkpoint.metric=eval/perplexity
refused "text for a trajectory model" 2 'reads trajectories' 'data.format=trajectories' -- train walks.yaml
refused "paths for a model of text" 2 'gpt does not read trajectories' 'model.type=trajectory' -- train good.yaml "${walks[@]}"
printf '0 1 0.5 x\n' >path.txt
refused "a path with a letter" 2 'path.txt:1' -- data stats good.yaml data.train=path.txt data.format=trajectories
for i in $(seq 200); do echo "line $i of the text"; done >text.txt
# A model of characters: what it is evaluated on stands alone, and what it writes has line ends.
run train good.yaml data.train=text.txt --run-name alone
seq -f 'the text of line %g' 40 >other.txt
mv text.txt away.txt
run eval alone data.validation=other.txt
holds "eval on other text, without that of training" 0 'eval/loss' 'other.txt: 791 validation tokens'
cp "$work/out" "$work/text"
run eval alone --split test data.test=other.txt
holds "and as test data" 0 'other.txt: 791 test tokens'
report "with the same metrics" "$(cmp "$work/text" "$work/out" 2>&1)"
mv away.txt text.txt
run eval alone data.validation=other.txt
report "and the same with that of training" "$(cmp "$work/text" "$work/out" 2>&1)"
refused "eval on characters that the model has not" 2 'letters.txt:' 'expected:' 'remedy:' -- eval alone data.validation=letters.txt
: >nothing.txt
refused "eval on an empty file" 2 'nothing.txt is empty' 'data.validation' 'remedy:' -- eval alone data.validation=nothing.txt
printf 'Zoe and a pink dog cried at the lake. He and the hen hugged tame goats.\n' >story.txt
run eval judged data.validation=story.txt
holds "eval of a model of the grammar on other text" 0 'eval/loss' 'story.txt'
for _ in 1 2 3 4 5; do echo line; done >prompts.txt
run generate alone --input prompts.txt --max-tokens 200 --temperature 2
report "a line for each prompt, whatever the texts hold" "$([ "$code" -eq 0 ] && [ "$(wc -l <"$work/out")" -eq 5 ] || echo "  exit code $code, $(wc -l <"$work/out") lines")"
report "and another text for each" "$([ "$(sort -u "$work/out" | wc -l)" -eq 5 ] || cat "$work/out")"
cp "$work/out" "$work/text"
run generate alone --prompt line --max-tokens 200 --temperature 2
report "a text of one prompt keeps its line ends" "$([ "$(wc -l <"$work/out")" -gt 0 ] || echo '  it has none')"
report "and is the first of many" "$(cmp <(tr '\n' ' ' <"$work/out") <(head -1 "$work/text" | tr -d '\n') 2>&1)"
run train good.yaml data.train=text.txt --run-name changing checkpoint.every=1
echo 'line 201 of the text' >>text.txt
run train good.yaml data.train=text.txt --run-name changing --resume training.max_steps=4 checkpoint.every=1
holds "a resumed run whose data changed" 2 'the training data is not what the run began with' 'data.allow_change=true'
run train good.yaml data.train=text.txt --run-name changing --resume training.max_steps=4 checkpoint.every=1 data.allow_change=true
holds "a resumed run that is told to go on" 0 'goes on with other data' 'step=4/4'

echo "cli: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
