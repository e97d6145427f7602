#!/bin/bash
#SBATCH -N 1 --gpus-per-node=4
cat > a.txt <<ONE; cat > b.txt <<'TWO'
srun not_this.py
ONE
python nor_this.py
TWO
# 1 << done is no here-document
V=xx
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
V=$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V$V
srun --container-image=nvcr.io#nvidia/pytorch:24.01-py3 --container-mounts=/data:/data torchrun --nproc_per_node=4 t.py
