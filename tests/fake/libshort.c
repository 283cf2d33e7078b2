/* libshort.c - a library with only the first function of each table, like a very old one. */
int cuInit(unsigned flags);
int nvmlInit_v2(void);
int nvrtcVersion(int *major, int *minor);

int cuInit(unsigned flags) { return (int)flags; }
int nvmlInit_v2(void) { return 0; }

int nvrtcVersion(int *major, int *minor) {
    *major = *minor = 1;
    return 0;
}
