#include "doca_on_host.h"
