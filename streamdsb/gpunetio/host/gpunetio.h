/* The host side of queue kind `gpunetio`: a ConnectX opened for one GPU, its queues, and what is steered to them.
 *
 * Calls return 0, or -1 with a sentence in streamdsb_card_error. The calling thread has made the GPU's primary
 * context current before streamdsb_card_open. Order: open, all queues, steer (if there are receive queues), kernels,
 * end of the kernels, close. */
#ifndef STREAMDSB_GPUNETIO_H
#define STREAMDSB_GPUNETIO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct streamdsb_card;

struct streamdsb_queue {
    void* handle;    /* for kernels: doca_gpu_eth_rxq or doca_gpu_eth_txq, in GPU memory */
    void* memory;    /* in GPU memory: the ring of slots, or what may be sent from */
    uint64_t bytes;  /* of that memory */
    uint32_t key;    /* of that memory, in network byte order */
    uint8_t dmabuf;  /* 1: the card reaches the memory through dmabuf, 0: through nvidia-peermem */
    uint8_t proxied; /* 1: the GPU cannot ring doorbells, so a thread here does */
};

/* Why the calling thread's last call that failed did so. */
const char* streamdsb_card_error(void);

/* nic, gpu: PCI addresses such as 0000:17:00.0. ethertype: of frames that go to the receive queues. */
int streamdsb_card_open(const char* nic, const char* gpu, uint16_t ethertype, struct streamdsb_card** card);

int streamdsb_card_mac(struct streamdsb_card* card, uint8_t mac[6]);

/* A cyclic queue; slots: a power of two from 512 on. consistent: 0 for GPUs before compute capability 9.0, which need
 * the card's help to see a frame before its completion. */
int streamdsb_card_receive_queue(struct streamdsb_card* card, uint32_t slots, uint32_t slot_bytes, int consistent,
                                 struct streamdsb_queue* queue);

/* descriptors: a power of two. bytes: of memory to send from. */
int streamdsb_card_send_queue(struct streamdsb_card* card, uint32_t descriptors, uint64_t bytes,
                              struct streamdsb_queue* queue);

/* From now on frames of the EtherType with source address byte 0 = 0x02 + 16 q go to the q-th receive queue, all
 * other traffic to the kernel as before. */
int streamdsb_card_steer(struct streamdsb_card* card);

/* Frames that the card has given to a receive queue since then, whether or not it had room for them. */
int streamdsb_card_steered(struct streamdsb_card* card, uint32_t queue, uint64_t* frames);

/* Takes everything down; no kernel uses the queues any more. Null is ignored. */
void streamdsb_card_close(struct streamdsb_card* card);

#ifdef __cplusplus
}
#endif
#endif
