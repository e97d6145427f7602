#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus=16
#SBATCH --exclusive
export TMPDIR=/scratch
run() {
  torchrun --nproc_per_node=8 --nnodes=$NNODES --rdzv_endpoint=$MASTER:6000 --max_restarts 0 --tee 3 run_train.py --config-file $1
}
NNODES=$SLURM_NNODES
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
CMD="torchrun --nproc_per_node=8 --nnodes=$NNODES --rdzv_endpoint=$MASTER:6000 run_train.py --config-file examples/a.yaml --at $(date +%F)"
SRUN_ARGS=" \
    --wait=60 \
    --kill-on-bad-exit=1 \
    "
srun $SRUN_ARGS -u bash -c "$CMD" || scontrol requeue $SLURM_JOB_ID
