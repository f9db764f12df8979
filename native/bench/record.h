/* What program.c tells starts.c through a pipe. Times since it was started; of one that stood at the gate, the moments of
 * the clock, and CPU time and sleeps since the gate opened. */
struct record {
    double main_ns, done_ns, cpu_ns, slept, private_bytes, peak_bytes;
};

/* Of a program that stands at the gate: pipes that are open for reading until starts.c closes its end. */
enum { GATE = 0, END = 3 };
