/* The exported dlsym, dlvsym, dlopen and dlmopen. The C library looks at the return address of its caller (RTLD_NEXT, RTLD_DEFAULT,
 * namespaces, run paths). So a call that this library does not handle is passed on by a jump, with the stack as it was. */

#if defined(__x86_64__)

/* Three pushes below the return address make a struct fr_dl_call, and align the stack. */
#define STUB(name)                          \
    .p2align 4;                             \
    .globl name; .type name, @function;     \
    .hidden fr_on_##name;                   \
name:                                       \
    .cfi_startproc;                         \
    pushq %rdx;                             \
    .cfi_adjust_cfa_offset 8;               \
    pushq %rsi;                             \
    .cfi_adjust_cfa_offset 8;               \
    pushq %rdi;                             \
    .cfi_adjust_cfa_offset 8;               \
    movq %rsp, %rdi;                        \
    call fr_on_##name;                      \
    movq %rax, %r11;                        \
    popq %rdi;                              \
    .cfi_adjust_cfa_offset -8;              \
    popq %rsi;                              \
    .cfi_adjust_cfa_offset -8;              \
    popq %rdx;                              \
    .cfi_adjust_cfa_offset -8;              \
    testq %r11, %r11;                       \
    je 1f;                                  \
    jmp *%r11;                              \
1:  movq %rdi, %rax;                        \
    ret;                                    \
    .cfi_endproc;                           \
    .size name, . - name;

#elif defined(__aarch64__)

#define STUB(name)                          \
    .p2align 4;                             \
    .globl name; .type name, %function;     \
    .hidden fr_on_##name;                   \
name:                                       \
    .cfi_startproc;                         \
    stp x29, x30, [sp, -48]!;              \
    .cfi_def_cfa_offset 48;                 \
    .cfi_offset 29, -48;                    \
    .cfi_offset 30, -40;                    \
    mov x29, sp;                            \
    stp x0, x1, [sp, 16];                  \
    stp x2, x30, [sp, 32];                 \
    add x0, sp, 16;                        \
    bl fr_on_##name;                        \
    mov x16, x0;                            \
    ldp x0, x1, [sp, 16];                  \
    ldr x2, [sp, 32];                      \
    ldp x29, x30, [sp], 48;                \
    .cfi_def_cfa_offset 0;                  \
    .cfi_restore 29;                        \
    .cfi_restore 30;                        \
    cbz x16, 1f;                            \
    br x16;                                 \
1:  ret;                                    \
    .cfi_endproc;                           \
    .size name, . - name;

#endif

    .text
    STUB(dlsym)
    STUB(dlvsym)
    STUB(dlopen)
    STUB(dlmopen)

    .section .note.GNU-stack, "", %progbits
