/* banned.h - functions that no file of ours may call: they overrun buffers, hide errors or keep
 * state. Included before everything else by the compiler's -include. */
#ifndef TW_BANNED_H
#define TW_BANNED_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef __cplusplus
#pragma GCC poison atoi atol atoll atof strcpy strcat strncpy sprintf vsprintf strtok gets
#pragma GCC poison rand srand
#endif
#endif
