#!/bin/bash
#SBATCH -N 2 --gpus-per-node=4
i=0
for node in $(scontrol show hostnames); do
  srun -w $node -N1 -n1 torchrun --nnodes 2 --node_rank $i --nproc_per_node 4 train.py &
  ((i++))
done
wait
