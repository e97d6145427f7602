#!/bin/bash -x
#SBATCH --account=training
#SBATCH --nodes=2
#SBATCH --gres=gpu:4
#SBATCH --partition=booster
#SBATCH --time=00:30:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
export CUDA_VISIBLE_DEVICES=0,1,2,3
ENV=$PROJECT/envs/torch
source $ENV/activate.sh
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
if [ "$SYSTEMNAME" = juwelsbooster ]; then
    MASTER_ADDR="${MASTER_ADDR}i"
fi
export MASTER_ADDR
export MASTER_PORT=6000
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
trap 'scontrol requeue $SLURM_JOB_ID' USR1
srun --cpu_bind=none bash -c "torchrun \
    --nnodes=\$SLURM_NNODES \
    --rdzv_conf=is_host=\$([ \$SLURM_PROCID = 0 ] && echo 1 || echo 0) \
    --nproc_per_node=4 \
    train.py --name 'run a' --job \$SLURM_JOB_ID"
