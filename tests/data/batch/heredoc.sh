#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=1
HF=$SCRATCH/hf
cat > worker.sh <<'EOF'
#!/bin/bash
module load cuda
export HF_HOME=$HF
torchrun --nnodes 2 --nproc-per-node 4 train.py --id $SLURM_JOB_ID
EOF
chmod +x worker.sh
srun bash worker.sh
