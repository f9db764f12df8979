/* What program.c tells starts.c through a pipe; times since it was started. */
struct record {
    double main_ns, done_ns, cpu_ns, slept, private_bytes, peak_bytes;
};
