/* One thunk per symbol, which jumps to the driver's function with all arguments untouched. Thunks are weak: a C function of the same name,
 * a hook, replaces one. thunks.inc names all symbols and their numbers. */

#if defined(__x86_64__)

/* Jumps to the driver's function, at the first call by way of fr_resolve. Between a caller and its callee, %r11 is free for use. */
#define THUNK(name, index)                 \
    .p2align 4;                            \
    .weak name; .type name, @function;     \
name:                                      \
    movq fr_real+8*index(%rip), %r11;      \
    testq %r11, %r11;                      \
    je 1f;                                 \
    jmp *%r11;                             \
1:  movl $index, %r11d;                    \
    jmp first_call;                        \
    .size name, . - name;

#define REFUSE(name, index)                \
    .weak name; .type name, @function;     \
name:                                      \
    movl $4, %eax;                         \
    ret;                                   \
    .size name, . - name;

    .text
    .hidden fr_real
    .hidden fr_resolve
    .type first_call, @function
first_call: /* number in %r11d; keeps every register that can hold an argument */
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    andq $-16, %rsp
    subq $192, %rsp
    movq %rdi, (%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movaps %xmm0, 64(%rsp)
    movaps %xmm1, 80(%rsp)
    movaps %xmm2, 96(%rsp)
    movaps %xmm3, 112(%rsp)
    movaps %xmm4, 128(%rsp)
    movaps %xmm5, 144(%rsp)
    movaps %xmm6, 160(%rsp)
    movaps %xmm7, 176(%rsp)
    movl %r11d, %edi
    call fr_resolve
    movq %rax, %r11
    movq (%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movaps 64(%rsp), %xmm0
    movaps 80(%rsp), %xmm1
    movaps 96(%rsp), %xmm2
    movaps 112(%rsp), %xmm3
    movaps 128(%rsp), %xmm4
    movaps 144(%rsp), %xmm5
    movaps 160(%rsp), %xmm6
    movaps 176(%rsp), %xmm7
    leave
    .cfi_def_cfa %rsp, 8
    jmp *%r11
    .cfi_endproc
    .size first_call, . - first_call

#elif defined(__aarch64__)

/* Between a caller and its callee, x16 and x17 are free for use. */
#define THUNK(name, index)                 \
    .p2align 4;                            \
    .weak name; .type name, %function;     \
name:                                      \
    adrp x16, fr_real+8*index;             \
    ldr x16, [x16, :lo12:fr_real+8*index]; \
    cbz x16, 1f;                           \
    br x16;                                \
1:  mov w16, index;                       \
    b first_call;                          \
    .size name, . - name;

#define REFUSE(name, index)                \
    .p2align 2;                            \
    .weak name; .type name, %function;     \
name:                                      \
    mov w0, 4;                            \
    ret;                                   \
    .size name, . - name;

    .text
    .hidden fr_real
    .hidden fr_resolve
    .p2align 2
    .type first_call, %function
first_call: /* number in w16; keeps every register that can hold an argument */
    .cfi_startproc
    stp x29, x30, [sp, -224]!
    .cfi_def_cfa_offset 224
    .cfi_offset 29, -224
    .cfi_offset 30, -216
    mov x29, sp
    stp x0, x1, [sp, 16]
    stp x2, x3, [sp, 32]
    stp x4, x5, [sp, 48]
    stp x6, x7, [sp, 64]
    str x8, [sp, 80]
    stp q0, q1, [sp, 96]
    stp q2, q3, [sp, 128]
    stp q4, q5, [sp, 160]
    stp q6, q7, [sp, 192]
    mov w0, w16
    bl fr_resolve
    mov x16, x0
    ldp x0, x1, [sp, 16]
    ldp x2, x3, [sp, 32]
    ldp x4, x5, [sp, 48]
    ldp x6, x7, [sp, 64]
    ldr x8, [sp, 80]
    ldp q0, q1, [sp, 96]
    ldp q2, q3, [sp, 128]
    ldp q4, q5, [sp, 160]
    ldp q6, q7, [sp, 192]
    ldp x29, x30, [sp], 224
    .cfi_def_cfa_offset 0
    .cfi_restore 29
    .cfi_restore 30
    br x16
    .cfi_endproc
    .size first_call, . - first_call

#else
#error "thunks are written for x86_64 and aarch64"
#endif

#include "thunks.inc"

/* The distance of each function of this library from the table: needs no relocation by the loader. */
#undef THUNK
#undef REFUSE
#define THUNK(name, index) .long name - fr_functions;
#define REFUSE(name, index) .long name - fr_functions;

    .section .rodata
    .p2align 2
    .hidden fr_functions
    .globl fr_functions
fr_functions:
#include "thunks.inc"
    .size fr_functions, . - fr_functions

    .section .note.GNU-stack, "", %progbits
