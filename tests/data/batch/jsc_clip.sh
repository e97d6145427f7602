#!/bin/bash
#SBATCH --job-name=clip
#SBATCH --account=hai_proj
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --threads-per-core=1
#SBATCH --gres=gpu:4
#SBATCH --partition=booster
#SBATCH --time=06:00:00
#SBATCH --output=logs/%x.%j.out
#SBATCH --mail-type=END,FAIL
jutil env activate -p hai_proj
ml Stages/2024 GCC OpenMPI CUDA
source sc_venv/activate.sh
export NCCL_SOCKET_IFNAME=ib0
export GLOO_SOCKET_IFNAME=ib0
export OMP_NUM_THREADS=1
export NCCL_IB_TIMEOUT=50
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)i
MASTER_PORT=7010
GPUS_PER_NODE=4
NUM_NODES=$SLURM_JOB_NUM_NODES
cd "$SLURM_SUBMIT_DIR/src" || exit 1
srun --wait=60 --kill-on-bad-exit=1 --threads-per-core=1 \
    python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES \
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT --rdzv_backend c10d --max_restarts 0 --tee 3 \
    -m open_clip_train.main --batch-size=$((256 / 4)) --logs ${LOGS:-$SCRATCH/logs}/clip --workers=$SLURM_CPUS_PER_TASK
