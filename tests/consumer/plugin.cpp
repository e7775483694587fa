// A user's shared library with all of mezzo's static libraries: see exported_symbols.sh.
extern "C" __attribute__((visibility("default"))) int plugin_entry() { return 0; }
