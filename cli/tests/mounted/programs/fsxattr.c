/*
 * Inode flags by FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR: tells those of a file, or sets them.
 *
 * usage: fsxattr FILE [XFLAGS]
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
	struct fsxattr attr;
	int fd = open(argv[1], O_RDONLY);

	if (argc < 2 || fd < 0)
		return 2;
	if (ioctl(fd, FS_IOC_FSGETXATTR, &attr)) {
		printf("get %d\n", errno);
		return 0;
	}
	if (argc > 2) {
		attr.fsx_xflags = strtoul(argv[2], NULL, 0);
		if (ioctl(fd, FS_IOC_FSSETXATTR, &attr)) {
			printf("set %d\n", errno);
			return 0;
		}
		ioctl(fd, FS_IOC_FSGETXATTR, &attr);
	}
	printf("flags %#x extent size %u project %u\n", attr.fsx_xflags, attr.fsx_extsize, attr.fsx_projid);
	return 0;
}
