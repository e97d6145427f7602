#!/bin/bash
#PBS -l select=2:ngpus=4
mpiexec -n 8 --ppn 4 python train.py
