/* A child of fork waits in an epoll set of its parent, in turns with it: each finds what the program has put into the set, and the bytes. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void){
  struct sockaddr_in at={.sin_family=AF_INET,.sin_addr.s_addr=htonl(INADDR_LOOPBACK)}; socklen_t n=sizeof at;
  int l=socket(AF_INET,SOCK_STREAM,0); bind(l,(void*)&at,sizeof at); listen(l,5); getsockname(l,(void*)&at,&n);
  int a=socket(AF_INET,SOCK_STREAM,0); connect(a,(void*)&at,sizeof at); int b=accept(l,0,0);
  int set=epoll_create1(0); struct epoll_event e={EPOLLIN,{.u64=77}}; epoll_ctl(set,EPOLL_CTL_ADD,b,&e);
  char c='x'; alarm(20);
  for(int i=0;i<60;i++){ write(a,&c,1); epoll_wait(set,&e,1,-1); read(b,&c,1); write(b,&c,1); read(a,&c,1); if(i<20) poll(0,0,1);}
  for (int turn=0; turn<3; turn++) {
    int p[2]; pipe(p);
    pid_t child=fork();
    if(child==0){ for(int i=0;i<5;i++){ int r=epoll_wait(set,&e,1,5000); printf("child: %d %llu", r,(unsigned long long)e.data.u64); ssize_t g=read(b,&c,1); printf(" read %zd\n", g); fflush(stdout); write(p[1],"k",1);} _exit(0);}
    for(int i=0;i<5;i++){ write(a,"y",1); read(p[0],&c,1);} 
    waitpid(child,0,0);
    for(int i=0;i<5;i++){ write(a,"z",1); int r=epoll_wait(set,&e,1,5000); printf("parent: %d %llu", r,(unsigned long long)e.data.u64); printf(" read %zd\n", read(b,&c,1)); fflush(stdout);} 
  }
}
