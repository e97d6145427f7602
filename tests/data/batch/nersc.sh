#!/bin/bash
#SBATCH -C gpu -q regular -A m1234_g
#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=32
#SBATCH --image=nersc/pytorch:24.06.02
#SBATCH --module=gpu,nccl-plugin
#SBATCH -J vit-era5
#SBATCH -t 01:00:00
DATADIR=/pscratch/sd/data
LOGDIR=${SCRATCH}/logs
args="${@}"
export FI_MR_CACHE_MONITOR=userfaultfd
export MASTER_ADDR=$(hostname)
if [ "${ENABLE_PROFILING:-0}" -eq 1 ]; then
    PROFILE_CMD="nsys profile"
fi
srun -u shifter -V ${DATADIR}:/data -V ${LOGDIR}:/logs \
    bash -c "
    source export_DDP_vars.sh
    ${PROFILE_CMD} python train.py ${args}
    "
