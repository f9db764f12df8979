/* Translates pids between pid namespaces. A process has one pid in each of its pid namespaces. Its slot contains the pid that the process sees
 * itself. A real driver returns the host's pid to every caller. Here each caller gets the pid of its own namespace: the node's agent that of
 * the host, a container its own. */
#include "nvml.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct { uint64_t space, start; uint32_t inside, pid; } known[SIM_PROCESSES];

static uint64_t pid_namespace(const char *process)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%.20s/ns/pid", process);
    return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* The last number of the line NSpid. */
static uint32_t innermost(const char *process)
{
    char path[64], line[512];
    uint32_t pid = 0;
    snprintf(path, sizeof path, "/proc/%.20s/status", process);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "NSpid:", 6)) continue;
        const char *last = strrchr(line, '\t');
        pid = last ? (uint32_t)strtoul(last, NULL, 10) : 0;
        break;
    }
    if (f) fclose(f);
    return pid;
}

/* 0: this /proc does not show the process. */
static uint32_t find(const struct sim_process *p)
{
    uint32_t pid = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *e; all && !pid && (e = readdir(all));)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && pid_namespace(e->d_name) == p->pid_namespace && innermost(e->d_name) == p->pid)
            pid = (uint32_t)strtoul(e->d_name, NULL, 10);
    if (all) closedir(all);
    return pid;
}

/* With the host's lock. Each process is looked up only once. */
uint32_t sim_nvml_pid(const struct sim_process *p)
{
    static uint64_t own;
    if (!own) own = pid_namespace("self");
    if (!p->pid_namespace || p->pid_namespace == own) return p->pid;
    uint32_t i = (uint32_t)(p - sim_nvml_host.state->processes);
    if (known[i].space != p->pid_namespace || known[i].start != p->start_time || known[i].inside != p->pid || !known[i].pid) {
        known[i].space = p->pid_namespace, known[i].start = p->start_time, known[i].inside = p->pid;
        known[i].pid = find(p);
    }
    return known[i].pid ? known[i].pid : p->pid;
}
