import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.SynchronousQueue;

/** Queues sync|array SECONDS: two threads hand integers over; prints the handovers per second. */
public class Queues {
    private static final Integer END = -1;

    public static void main(String[] arguments) throws InterruptedException {
        BlockingQueue<Integer> queue =
            arguments[0].equals("sync") ? new SynchronousQueue<>() : new ArrayBlockingQueue<>(1);
        long durationNs = (long) (Double.parseDouble(arguments[1]) * 1e9);
        Thread consumer = new Thread(() -> {
            try {
                while (queue.take() != END) { }
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
        });
        consumer.start();
        long start = System.nanoTime();
        long handovers = 0;
        while (System.nanoTime() - start < durationNs) {
            queue.put(1);
            handovers++;
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        queue.put(END);
        consumer.join();
        System.out.printf("handovers/s: %.1f%n", handovers / seconds);
    }
}
