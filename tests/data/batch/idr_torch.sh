#!/bin/bash
#SBATCH --job-name=mnist
#SBATCH -C v100-32g
#SBATCH --account=xyz@v100
#SBATCH --qos=qos_gpu-t3
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=10
#SBATCH --hint=nomultithread
#SBATCH --time=00:10:00
cd ${SLURM_SUBMIT_DIR}
module purge
module load pytorch-gpu/py3/2.1.1
set -x
srun python -u mnist.py --epochs 8 --batch-size 128 --dir $SCRATCH/mnist
