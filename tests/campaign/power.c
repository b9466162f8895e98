/* Loaded before libc (LD_PRELOAD): notes what a process has brought to the disk.
 *
 * After fsync or fdatasync of a file its content is copied to $POWER_STORE/INODE.file, after that of
 * a folder its names to $POWER_STORE/INODE.dir, a line "inode type name" each. What is not there was
 * not synchronised, so a loss of power may take it. Descriptors stay open, so that no inode is used
 * twice. Nothing really goes to the disk while this is on. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void note_file(const char *store, int from, unsigned long inode) {
    char part[4096], name[4096], self[64], block[1 << 16];
    snprintf(part, sizeof part, "%s/%lu.file.%d.%d", store, inode, (int)getpid(), from);
    snprintf(name, sizeof name, "%s/%lu.file", store, inode);
    snprintf(self, sizeof self, "/proc/self/fd/%d", from);
    int in = open(self, O_RDONLY | O_CLOEXEC);
    int out = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t count;
    while (in >= 0 && out >= 0 && (count = read(in, block, sizeof block)) > 0)
        if (write(out, block, count) != count) abort();
    if (out >= 0) close(out);
    rename(part, name); /* `in` stays open */
}

static void note_folder(const char *store, int from, unsigned long inode) {
    char part[4096], name[4096];
    snprintf(part, sizeof part, "%s/%lu.dir.%d.%d", store, inode, (int)getpid(), from);
    snprintf(name, sizeof name, "%s/%lu.dir", store, inode);
    int again = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = again < 0 ? NULL : fdopendir(again);
    FILE *out = fopen(part, "we");
    struct dirent *entry;
    while (folder && out && (entry = readdir(folder))) {
        struct stat about;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (fstatat(from, entry->d_name, &about, AT_SYMLINK_NOFOLLOW)) continue;
        if (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode))
            openat(from, entry->d_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* stays open */
        fprintf(out, "%lu %c %s\n", (unsigned long)about.st_ino,
                S_ISDIR(about.st_mode) ? 'd' : 'f', entry->d_name);
    }
    if (folder) closedir(folder);
    if (out) fclose(out);
    rename(part, name);
}

static int synced(const char *which, int descriptor) {
    const char *store = getenv("POWER_STORE");
    struct stat about;
    if (!store || fstat(descriptor, &about)) {
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, which);
        return real(descriptor);
    }
    if (S_ISREG(about.st_mode)) note_file(store, descriptor, about.st_ino);
    if (S_ISDIR(about.st_mode)) note_folder(store, descriptor, about.st_ino);
    return 0;
}

int fsync(int descriptor) { return synced("fsync", descriptor); }
int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
