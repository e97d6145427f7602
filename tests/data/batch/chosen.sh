#!/bin/bash
#SBATCH -N 1
if [ -z "$CONFIG" ]; then
  export SIZE=small
  torchrun --nproc-per-node 2 train.py --config base.yaml --size $SIZE
fi
