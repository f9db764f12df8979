/* Variables of PTX texts, as the library reads them. With the argument "texts" this is the program that ptx_compiler_test.py calls: it prints the
 * texts, the bytes and the library's result, each ended by a zero byte. */
#include "check.h"
#include "memory/image.h"
#include "ptx_texts.h"

/* In separate memory, so that a sanitizer detects a read beyond the end. */
static bool globals_of(const char *text, size_t length, uint64_t *bytes)
{
    char *copy = malloc(length + 1);
    if (!copy) exit(2);
    memcpy(copy, text, length);
    char *exact = realloc(copy, length ? length : 1);
    bool understood = fr_ptx_globals(exact, length, bytes);
    free(exact);
    return understood;
}

static uint64_t read_text(const char *text)
{
    uint64_t bytes = 0;
    const char *whole = ptx_whole(text);
    return globals_of(whole, strlen(whole), &bytes) ? bytes : UINT64_MAX;
}

static void texts_are_read_as_ptxas_reads_them_or_as_more(void)
{
    for (size_t i = 0; i < PTX_TEXTS; i++) {
        uint64_t found = read_text(ptx_texts[i].text);
        if (found != ptx_most(&ptx_texts[i])) printf("%s\n", ptx_texts[i].name);
        EXPECT_EQ(found, ptx_most(&ptx_texts[i]));
    }
}

static void a_declaration_inside_a_value_is_unreadable(void)
{
    for (size_t i = 0; i < HIDING_TEXTS; i++) EXPECT_EQ(read_text(hiding_texts[i]), UINT64_MAX);
}

static void what_is_not_understood_is_unreadable(void)
{
    for (size_t i = 0; i < UNREADABLE_TEXTS; i++) {
        const char *whole = ptx_whole(unreadable_texts[i]);
        if (!fr_image_read(whole, strlen(whole), NULL).unreadable) printf("%s\n", unreadable_texts[i]);
        EXPECT(fr_image_read(whole, strlen(whole), NULL).unreadable);
    }
}

static void sums_end_at_more_than_any_card_has(void)
{
    char text[20000] = "";
    for (int i = 0; i < 200; i++) sprintf(text + strlen(text), ".global .align 2147483648 .b8 x%d[18446744073709551615];\n", i);
    uint64_t bytes = 0;
    EXPECT(fr_ptx_globals(text, strlen(text), &bytes));
    EXPECT_EQ(bytes, 1ull << 50);
}

static void a_text_may_end_anywhere(void)
{
    uint64_t bytes;
    for (size_t i = 0; i < PTX_TEXTS; i++)
        for (size_t n = 0; n <= strlen(ptx_texts[i].text); n++) globals_of(ptx_texts[i].text, n, &bytes);
}

static uint64_t code_beyond_the_text(const char *text)
{
    const char *whole = ptx_whole(text);
    return fr_image_read(whole, strlen(whole), NULL).code - strlen(whole);
}

static void constants_count_as_code(void)
{
    EXPECT_EQ(code_beyond_the_text(".global .b8 x[100];"), 0);
    EXPECT_EQ(code_beyond_the_text(".const .b8 c[1000];"), 1000);
    EXPECT_EQ(code_beyond_the_text(".visible.const.align 8 .f64 c[4096], d[4096];"), 65536);
    EXPECT_EQ(code_beyond_the_text(".visible .entry k() { ld.const.u32 %r1, [c]; ld.const .v2.u32 {%r1, %r2}, [c+8]; cvta.const.u64 %a, %b; ret; }"), 0);
    EXPECT_EQ(code_beyond_the_text("// .const .b8 c[1000];"), 0);
    EXPECT_EQ(code_beyond_the_text(".const[3] .b8 c[1000];"), 11 * 65536);
    EXPECT_EQ(code_beyond_the_text(".const .b8 c[1000*2];"), 11 * 65536);
}

static int print_texts(void)
{
    for (size_t i = 0; i < PTX_TEXTS; i++)
        printf("%s%c%s%c%llu%c%llu%c", ptx_texts[i].name, 0, ptx_whole(ptx_texts[i].text), 0, ptx_texts[i].bytes, 0,
               (unsigned long long)read_text(ptx_texts[i].text), 0);
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 2 && !strcmp(arguments[1], "texts")) return print_texts();
    RUN(texts_are_read_as_ptxas_reads_them_or_as_more);
    RUN(what_is_not_understood_is_unreadable);
    RUN(a_declaration_inside_a_value_is_unreadable);
    RUN(sums_end_at_more_than_any_card_has);
    RUN(constants_count_as_code);
    RUN(a_text_may_end_anywhere);
    FINISH;
}
