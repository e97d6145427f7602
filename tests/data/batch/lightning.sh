#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:8
#SBATCH --ntasks-per-node=8
#SBATCH --mem=0
#SBATCH --signal=SIGUSR1@90
#SBATCH --uenv=pytorch/v2:v1
#SBATCH --view default
source activate $1
export NCCL_DEBUG=INFO
ARGS=(
  fit
  --config configs/a.yaml   # main
  --trainer.num_nodes=$SLURM_NNODES
)
if [[ $USER == root ]]; then
  echo no; exit 1
fi
[ -n "$WANDB_MODE" ] || export WANDB_MODE=offline
srun python3 main.py "${ARGS[@]}" --out="$PWD/out dir" ${EXTRA:-}
