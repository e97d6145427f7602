/* A libnvidia-ml.so.1 without GPUs: each line of the file that FAKE_NVML names is one, and is read anew by every call.

   UUID MODEL UTILISATION USED TOTAL PROCESSES

   A number below zero: the driver does not support that. The model "lost" has fallen off the bus; "sick" never answers. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
       INSUFFICIENT_SIZE = 7 };

struct gpu { char uuid[96], model[96]; int utilisation; long long used, total; unsigned int processes; };
struct memory { unsigned long long total, free, used; };
struct rates { unsigned int gpu, memory; };

static unsigned int read_gpus(struct gpu *gpus, unsigned int room)
{
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    unsigned int count = 0;
    while (file && count < room) {
        struct gpu *gpu = &gpus[count];
        if (fscanf(file, "%95s %95s %d %lld %lld %u", gpu->uuid, gpu->model, &gpu->utilisation, &gpu->used, &gpu->total,
                   &gpu->processes) != 6)
            break;
        count++;
    }
    if (file)
        fclose(file);
    return count;
}

static int take(uintptr_t handle, struct gpu *gpu)
{
    struct gpu gpus[16];
    if (handle == 0 || handle > read_gpus(gpus, 16))
        return INVALID_ARGUMENT;
    *gpu = gpus[handle - 1];
    while (!strcmp(gpu->model, "sick"))
        pause();
    return strcmp(gpu->model, "lost") ? SUCCESS : GPU_IS_LOST;
}

int nvmlInit_v2(void)
{
    struct gpu gpus[16];
    return read_gpus(gpus, 16) ? SUCCESS : DRIVER_NOT_LOADED;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    struct gpu gpus[16];
    *count = read_gpus(gpus, 16);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    struct gpu gpu;
    *handle = (void *)(uintptr_t)(index + 1);
    return take(index + 1, &gpu);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    struct gpu gpus[16];
    unsigned int count = read_gpus(gpus, 16);
    for (unsigned int index = 0; index < count; index++)
        if (!strcmp(gpus[index].uuid, uuid))
            return nvmlDeviceGetHandleByIndex_v2(index, handle);
    return NOT_FOUND;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length)
{
    struct gpu gpu;
    int status = take((uintptr_t)handle, &gpu);
    if (status == SUCCESS)
        snprintf(name, length, "%s", gpu.model);
    return status;
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory)
{
    struct gpu gpu;
    int status = take((uintptr_t)handle, &gpu);
    if (status == SUCCESS && gpu.used < 0)
        return NOT_SUPPORTED;
    if (status == SUCCESS)
        *memory = (struct memory){gpu.total, gpu.total - gpu.used, gpu.used};
    return status;
}

int nvmlDeviceGetUtilizationRates(void *handle, struct rates *rates)
{
    struct gpu gpu;
    int status = take((uintptr_t)handle, &gpu);
    if (status == SUCCESS && gpu.utilisation < 0)
        return NOT_SUPPORTED;
    if (status == SUCCESS)
        *rates = (struct rates){gpu.utilisation, 0};
    return status;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
    struct gpu gpu;
    int status = take((uintptr_t)handle, &gpu);
    if (status == SUCCESS)
        snprintf(uuid, length, "%s", gpu.uuid);
    return status;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, void *processes)
{
    struct gpu gpu;
    int status = take((uintptr_t)handle, &gpu);
    *count = status == SUCCESS ? gpu.processes : 0;
    return status == SUCCESS && *count ? INSUFFICIENT_SIZE : status;
}
