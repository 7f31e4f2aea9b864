// Returns 11 if it is given the word "arguments".
#include <string.h>

int main(int count, char **arguments) { return !strcmp(arguments[count - 1], "arguments") ? 11 : 1; }
