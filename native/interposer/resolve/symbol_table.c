/* The table of symbols. A name is found by binary search. The number of a symbol is its index in all tables. */
#include "resolve/symbol_table.h"

#include "base/text.h"
#include "resolve/real.h"

#include <stdint.h>

#include "lookup.inc"

int fr_symbol(const char *name)
{
    if (!fr_begins(name, "cu") && !fr_begins(name, "nvml")) return FR_NO_SYMBOL;
    int low = 0, high = FR_SYMBOLS - 1;
    while (low <= high) {
        int middle = (low + high) / 2, order = fr_compare_names(name, fr_symbol_name(middle));
        if (!order) return middle;
        if (order < 0) high = middle - 1;
        else low = middle + 1;
    }
    return FR_NO_SYMBOL;
}

const char *fr_symbol_name(int symbol) { return names + name_at[symbol]; }
enum fr_symbol_class fr_symbol_class(int symbol) { return (enum fr_symbol_class)class_of[symbol]; }
