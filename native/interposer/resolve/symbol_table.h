/* The table of the driver's symbols: name, number and class of each. */
#ifndef FRACTILE_RESOLVE_SYMBOL_TABLE_H
#define FRACTILE_RESOLVE_SYMBOL_TABLE_H

#define FR_NO_SYMBOL (-1)
enum fr_symbol_class { FR_PASS, FR_ACCOUNT, FR_PACE, FR_VIRTUALISE, FR_REFUSE };

int fr_symbol(const char *name); /* the symbol's number, or FR_NO_SYMBOL */
const char *fr_symbol_name(int symbol);
enum fr_symbol_class fr_symbol_class(int symbol);

#endif
