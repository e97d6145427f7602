#!/bin/bash
#SBATCH -N 1 --gpus-per-node=4
IMG=/x/y.sif
apptainer exec --nv --bind /a:/a $IMG torchrun --nproc_per_node 4 t.py
