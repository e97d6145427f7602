#!/bin/bash
#SBATCH -N 1 --gres=gpu:a100:4
read -r HOST PORT < endpoint.txt
set -- --lr 1e-3 "a b"
N=$((2 * (3 + 1) / 2 - 0))
torchrun --nproc-per-node=$N train.py data/*.tar {a,b} ~/c [1,2] '{env.X}' "$@" "$EXTRA"
