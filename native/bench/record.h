/* The record that program.c sends to starts.c through a pipe. Times are since the process was started. For a process that waited at the gate
 * they are clock times, and CPU time and sleeps count from the opening of the gate. */
struct record {
    double main_ns, done_ns, cpu_ns, slept, private_bytes, peak_bytes;
};

/* Descriptors of a process at the gate: pipes from which it reads until starts.c closes the other end. */
enum { GATE = 0, END = 3 };
