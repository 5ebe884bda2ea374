#!/bin/bash
# On the login node, or wherever the judge can be reached: the runs of all shards become one, which is judged.
#
#   RUNS=/scratch/me/qwen2 ./judge.sh
#
# What else is given goes to 'otoscope judge'. Stopped at any moment, the same command goes on.

set -euo pipefail
: "${RUNS:?the folder of the runs}"

otoscope merge "$RUNS"/shard-*-of-* --run-dir "${MERGED:-$RUNS/merged}" --no-html
otoscope judge "${MERGED:-$RUNS/merged}" --judge-model "${JUDGE_MODEL:-gpt-4-0125-preview}" "$@"
