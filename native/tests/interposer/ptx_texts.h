/* Texts between the head of a PTX text and a kernel, with the bytes of variables that ptxas 12.9 gives them (ptx_compiler_test.py checks that with
 * ptxas). `read`: the result of both readers, if it is larger; the library's result may be larger still, up to `most`. */
#ifndef PTX_TEXTS_H
#define PTX_TEXTS_H

#include <stdio.h>

#define MIB_100 104857600ull

struct ptx_text {
    const char *name, *text;
    unsigned long long bytes, read, most;
};

static const struct ptx_text ptx_texts[] = {
    /* tokens */
    {"plain", ".visible .global .align 4 .b8 x[104857600];", MIB_100, 0, 0},
    {"no_space", ".global.b8 x[104857600];", MIB_100, 0, 0},
    {"no_space_before", ".visible.global .b8 x[104857600];", MIB_100, 0, 0},
    {"no_space_at_all", ".visible.global.align 4 .v4.f32 x[6553600];", MIB_100, 0, 0},
    {"weak", ".weak.global.b8 x[104857600];", MIB_100, 0, 0},
    {"common", ".common .global .b8 x[104857600];", MIB_100, 0, 0},
    {"comments", ".global /* a ; */ .b8 x /* ] */ [ // ]\n104857600 ];", MIB_100, 0, 0},
    {"comment_in_comment", "/* a /* b */ .global .b8 x[104857600];", MIB_100, 0, 0},
    {"comment_that_only_seems_to_end", "/*/ .global .b8 y[8]; /*/ .global .b8 x[104857600]; /**/", MIB_100, 0, 0},
    {"line_comment_does_not_go_on", "// a \\\n.global .b8 x[104857600];", MIB_100, 0, 0},
    {"line_comment_over_a_return", "// a \r.global .b8 y[8];\n.global .b8 x[104857600];", MIB_100, 0, 0},
    {"lines", ".global\n.b8\r\n\tx\f[\n104857600\n]\n;", MIB_100, 0, 0},
    {"control_character", ".global\x1a.b8 x[104857600];", MIB_100, 0, 0},
    {"brace_in_a_string", ".file 1 \"{\"\n.global .b8 x[104857600];", MIB_100, 0, 0},
    {"comment_in_a_string", ".file 1 \"/*\"\n.global .b8 x[104857600];", MIB_100, 0, 0},
    {"string_without_escapes", ".file 1 \"a\\\"\n.global .b8 x[104857600];\n.file 2 \"b\"", MIB_100, 0, 0},
    {"string_of_two_lines", ".file 1 \"a\n.global .b8 y[8];\"\n.global .b8 x[104857600];", MIB_100, 0, 0},
    {"odd_names", ".global .b8 %x[1]; .global .b8 $x[2]; .global .b8 _x$[4]; .global .b8 global[8];", 15, 0, 0},
    {"debug_section", ".section .debug_str { .b8 1 }\n.global .b8 x[104857600];", MIB_100, 0, 0},
    /* numbers */
    {"hexadecimal", ".global .b8 x[0x6400000];", MIB_100, 0, 0},
    {"octal", ".global .b8 x[0620000000];", MIB_100, 0, 0},
    {"octal_of_two", ".global .b8 x[0144][1048576];", MIB_100, 0, 0},
    {"binary", ".global .b8 x[0b110010000000000000000000000];", MIB_100, 0, 0},
    {"binary_unsigned", ".global .b8 x[0B110010000000000000000000000U];", MIB_100, 0, 0},
    {"unsigned", ".global .b8 x[104857600U];", MIB_100, 0, 0},
    {"size_of_a_warp", ".global .b8 x[WARP_SZ][3276800];", MIB_100, 0, 0},
    {"four_gigabytes", ".global .b8 x[4294967297];", 1, 1, 4294967297ull},
    {"beyond_64_bits", ".global .b64 x[2305843009213693953];", 8, 8, 1ull << 50},
    {"beyond_64_bits_in_two", ".global .b8 x[4294967296][4294967297]; .global .b8 y[8];", 8, 8, 1ull << 50},
    /* types */
    {"two_dimensions", ".global .b8 x[1024][102400];", MIB_100, 0, 0},
    {"vector", ".global .v4 .f32 x[6553600];", MIB_100, 0, 0},
    {"doubles", ".global .f64 x[13107200];", MIB_100, 0, 0},
    {"sixteen_bytes", ".global .b128 x[6553600];", MIB_100, 0, 0},
    {"pairs", ".global .f16x2 x[26214400];", MIB_100, 0, 0},
    {"managed", ".visible .global .attribute(.managed) .align 8 .b8 x[104857600];", MIB_100, 0, 0},
    {"attribute_in_front", ".attribute(.managed) .global .b8 x[104857600];", MIB_100, 0, 0},
    {"textures", ".global .texref t; .visible .global .surfref s = { width = 4 }; .global .b8 x[8];", 8, 0, 0},
    {"arrays_of_textures", ".global .texref t[3], u; .global .surfref s[2][2]; .global .samplerref r[5];", 368, 0, 0},
    /* names, values */
    {"two_names", ".global .b8 x[52428800], y[52428800];", MIB_100, 0, 0},
    {"three_names", ".global .u32 x = 5, y = 6, z;", 12, 0, 0},
    {"values", ".global .b8 x[10] = {1,2}, y[20] = {3}, z[] = {1,2,3};", 33, 0, 0},
    {"no_size", ".global .u64 x[] = {1,2,3,4,5,6,7,8};", 64, 0, 0},
    {"no_first_size", ".global .b8 x[][104857600] = {{1}};", MIB_100, 0, 0},
    {"no_first_size_of_three", ".global .u32 x[][3] = {{1},{2},{3}};", 36, 0, 0},
    {"vectors_without_size", ".global .v4 .f32 x[] = {{1.0,2.0,3.0,4.0},{1.0,2.0,3.0,4.0}};", 32, 0, 0},
    {"addresses", ".global .b8 y[16]; .global .u64 x[] = {y, y+4, generic(y), generic(y)+(8*2)};", 48, 0, 0},
    {"bytes_of_addresses", ".global .b8 y[10]; .global .u8 x[] = {0xff(y), 0xff00(y), 0xff(generic(y))};", 13, 0, 0},
    {"empty_value", ".global .u32 x[2] = {};", 8, 0, 0},
    /* alignment */
    {"alignment", ".global .align 16 .b8 x[3], y[5], z[7];", 39, 0, 0},
    {"less_than_the_type_needs", ".global .align 1 .b8 x; .global .align 4 .v4 .f32 y;", 17, 17, 32},
    {"two_alignments", ".global .align 16 .align 32 .b8 x[10]; .global .align 0x10 .b8 y; .global .align WARP_SZ .b8 z;", 49, 0, 0},
    {"large_alignment", ".global .align 2147483648 .b8 x[10]; .global .b8 y[10];", 20, 0, 0},
    {"small_before_large", ".global .b8 a; .global .align 128 .b8 x; .global .b8 b; .global .align 128 .b8 y; .global .b8 c;", 132, 132, 258},
    {"two_sections", ".global .b8 x[2]; .global .b8 y[1] = {1}; .global .align 64 .b8 z[1]; .global .align 64 .b8 w[1] = {2};", 67, 67, 129},
    /* variables that exist once */
    {"external", ".extern .global .b8 x[104857600];", MIB_100, 0, 0},
    {"external_and_defined", ".extern .global .b8 x[104857600]; .visible .global .b8 x[104857600];", MIB_100, 0, 0},
    {"defined_and_external", ".visible .global .b8 x[104857600]; .extern .global .b8 x[104857600];", MIB_100, 0, 0},
    {"external_without_size", ".extern .global .b8 x[]; .visible .global .b8 x[104857600];", MIB_100, 0, 0},
    {"external_twice", ".extern .global .b8 x[104857600]; .extern .global .b8 x[104857600];", MIB_100, 0, 0},
    {"external_and_in_a_function", ".extern .global .b8 x[52428800]; .func f() { .global .b8 x[52428800]; ret; }", MIB_100, 0, 0},
    {"copies", ".global .u32 x<1000>;", 0, 4000, 4000},
    /* functions */
    {"in_a_function", ".func f() {\n.global .b8 x[104857600];\nret;\n}", MIB_100, 0, 0},
    {"in_a_kernel", ".visible .entry q() {\n.global.b8 x[104857600];\nret;\n}", MIB_100, 0, 0},
    {"in_inner_blocks", ".func f() { { .global .b8 x[52428800]; } { { .global .b8 x[52428800]; } } ret; }", MIB_100, 0, 0},
    {"behind_a_label", ".func f() { cvta: .global .b8 x[104857600]; ret; }", MIB_100, 0, 0},
    {"behind_a_line", ".file 1 \"x\"\n.func f() { .loc 1 2 3 .global .b8 x[104857600]; ret; }", MIB_100, 0, 0},
    {"instructions", ".global .u32 g; .func f() { .reg .u64 r; .reg .u32 s; .reg .pred p; cvta .global .u64 r, g; cvta.to.global.u64 r, r; cvta.global.u64 r, g;"
                     " ld .global .u32 s, [g]; atom.global.add.u32 s, [g], 1; red.global.add.u32 [g], 1; ld.global.nc.u32 s, [g]; prefetch.global.L2 [g];"
                     " isspacep.global p, r; @p cvta.to.global.u64 r, r; st.global.u32 [g], s; ret; }", 4, 0, 0},
    {"no_names", ".global .b8 ; .global .b8 x[8];", 8, 0, 0},
    {"managed_with_spaces", ".global .attribute ( .managed ) .b8 x[104857600];", MIB_100, 0, 0},
    {"modifiers", ".func f() { .reg .u64 r; .reg .u32 s; .reg .pred p; .loc 1 2 3 ld.global.u32 s, [r]; @p st.global.v2.u32 [r], {s, s}; a: ld.volatile.global.u32 s, [r];"
                  " ret; } .visible .entry g(.param .u64 .ptr .global q) { .reg .u32 s; .reg .u64 r; ld.weak.global.u32 s, [r]; ret; }", 0, 0, 0},
    {"parameters", ".visible .entry g(.param .u64 .ptr .global .align 4 p, .param .u64 .ptr .global q) { ret; } .global .b8 x[8];", 8, 0, 0},
    {"other_spaces", ".const .b8 c[1000]; .shared .b8 s[1000]; .func f() { .local .b8 l[1000]; .param .b8 p[1000]; .shared .b8 s[10]; ret; }", 0, 0, 0},
};

/* ptxas accepts none of these, but another compiler may. The library does not load them. */
static const char *const unreadable_texts[] = {
    ".global .b8 x[4*26214400];", ".global .b8 x[(104857600)];", ".global .b8 x[1<<27];", ".global .b8 x[1 ? 104857600 : 1];", ".global .b8 x[-1];",
    ".global .b8 x[089];", ".global .b8 x[1000L];", ".global .b8 x[100][];", ".global .b8 x[];", ".global .e9m9 x[104857600];", ".global .e9m9 x;",
    ".func f() { .global .e9m9 x[104857600]; ret; }", ".global .b8 x[104857600] y;", ".global .b8 x[104857600], 5;",
    ".global .b8 %%x[104857600];", ".global .b8 x%y[104857600];", ".global .b8 @x[104857600];", ".global .b8 -x[104857600];", ".global .b8 x:y[104857600];",
    ".global .b8 x.y[104857600];", ".global .b8 1x[104857600];", ".global .b8 \"x\"[104857600];", ".global .b8 \\u0078[104857600];",
    ".global .b8 x y;", ".global x[104857600];", ".global .align 4 x;", ".func f() { .global .b8 %%x[104857600]; ret; }", ".func f() { ret; .global .b8 @x[104857600]; }",
    ".func f() { a: .global .b8 -x[104857600]; ret; }", ".visible .entry g(.param .u64 .ptr .global q) { ret; } .global .b8 @x[104857600];",
};

/* A compiler refuses these. simgpu takes the second declaration, as a driver might. */
static const char *const hiding_texts[] = {
    ".global .b8 x=\n.global .b8 a[1068435456];", ".global .b8 x[] = {1, .global .b8 a[1068435456];", ".func f() { .global .b8 x = .global .b8 a[1068435456]; ret; }",
};

#define HIDING_TEXTS (sizeof hiding_texts / sizeof *hiding_texts)
#define PTX_TEXTS (sizeof ptx_texts / sizeof *ptx_texts)
#define UNREADABLE_TEXTS (sizeof unreadable_texts / sizeof *unreadable_texts)

static inline const char *ptx_whole(const char *text)
{
    static char whole[4096];
    snprintf(whole, sizeof whole, ".version 8.0\n.target sm_80\n.address_size 64\n%s\n.visible .entry k() { ret; }\n", text);
    return whole;
}

static inline unsigned long long ptx_read(const struct ptx_text *t) { return t->read > t->bytes ? t->read : t->bytes; }
static inline unsigned long long ptx_most(const struct ptx_text *t) { return t->most > ptx_read(t) ? t->most : ptx_read(t); }

#endif
