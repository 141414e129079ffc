package contenders;

/** A queue under measurement. Its constructor starts the drain threads. */
interface Contender {
    /** Produces one item; waits while there is no room. */
    void produce(Metric metric) throws InterruptedException;

    /** Ends the drain threads. All items have been handled. */
    void stop() throws InterruptedException;
}
